"""`callboard zeek …`: connect to Zeek."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from callboard.cli.cli_error import CliError, UsageError, explained
from callboard.cli.options import command, flag, noun, option
from callboard.cli.output import say, to_json
from callboard.cli.own_node import JoinOptions, catch_signals, open_port
from callboard.cli.work.zeek_logger import LoggerOptions, run_logger
from callboard.support.redaction import redacted

#: Name of these commands' own node.
ZEEK_NODE: Final = "callboard zeek"

#: Seconds between checks for a signal.
SIGNAL_POLL_SECONDS: Final = 0.05

app = noun()


@dataclass(frozen=True, kw_only=True)
class PrintOptions(JoinOptions):
    """Selection and number of the printed messages."""

    topic: list[str] | None = option(
        None, "Prefix of printed topics; repeatable; default: all.", metavar="TOPIC"
    )
    count: int = option(0, "End after this many messages; 0 for no end.", min=0)
    timeout: float = option(10.0, "Seconds for Zeek and each peer to answer.", min=0.001)


@dataclass(frozen=True, kw_only=True)
class ConnectOptions(PrintOptions):
    """Access to Zeek's WebSocket, or to a cluster's ZeroMQ."""

    name: str = option("", "Name of this application in Zeek.")
    token_file: Path | None = option(None, "File with the token to send.", metavar="FILE")
    zeek_tls: Path | None = option(
        None, "Folder with authority.pem, for wss://; default: the system's.", metavar="FOLDER"
    )
    member: str = option("", "With zmq://: the cluster node to appear as.")
    curve: Path | None = option(
        None, "With zmq://: TOML file with the keys server and secret.", metavar="FILE"
    )


@dataclass(frozen=True, kw_only=True)
class PeerOptions(PrintOptions):
    """Access to an endpoint of Zeek's Broker."""

    wire: str = option(
        "zeek-2", "zeek-2 for Broker 2.x, zeek-1.4 for Broker 1.4.", metavar="WIRE"
    )
    disable_ssl: bool = flag("Connect without TLS, like that endpoint.", "--disable-ssl")
    certificates: Path | None = option(
        None, "Folder with authority.pem, certificate.pem, key.pem.", metavar="FOLDER"
    )


@command(app)
def connect(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="ws://HOST:PORT, wss://…, or zmq://HOST:PORT.")
    ],
    options: ConnectOptions,
) -> None:
    """Connect to a Zeek and print its messages, until Ctrl-C or SIGTERM.

    A ws:// URL is a Zeek's WebSocket. A zmq:// URL is a cluster's ZeroMQ: the manager's XPUB,
    and its XSUB at the next port, or as in zmq://HOST:5555/5556.

    A lost connection is restored. With --peer or --listen the messages also reach all
    subscribers in a callboard cluster.

    \b
    Examples:
      callboard zeek connect ws://127.0.0.1:27759
      callboard zeek connect ws://zeek:27759 --topic /zeek/notice --json | jq .data
      callboard zeek connect wss://zeek --token-file token --peer basp://127.0.0.1:4222
      callboard zeek connect zmq://manager:5555 --topic zeek.cluster --curve keys.toml
    """  # noqa: D301
    from callboard.kernel.errors import TlsError
    from callboard.model.errors import EndpointError

    opened = _opened_zeromq if url.startswith("zmq:") else _opened_web_socket
    with _receiving(options) as (stop, hub, queue):
        with explained((EndpointError, TlsError), "see callboard zeek connect --help"):
            peer = opened(hub, url, options)
        with peer:
            if not peer.await_subscribed(options.timeout):
                reason = peer.reason or f"{redacted(url)} sent no acknowledgment"
                step = "check the address, or --timeout"
                raise CliError(why=reason.partition(";")[0], step=step)
            _print_connected(peer, options, is_cluster=url.startswith("zmq:"))
            _print_all(queue, stop, options)


@contextmanager
def _receiving(options: PrintOptions) -> Iterator[tuple[Any, Any, Any]]:
    """Run a linked node; yield the stop event, the hub, and a queue of messages."""
    from callboard.topics.hub import Hub
    from callboard.topics.message_queue import MessageQueue

    queue: MessageQueue[Any] = MessageQueue()
    with catch_signals() as stop, options.open_node(ZEEK_NODE) as node:
        hub = Hub.of(node)
        if options.listen:
            open_port(node, options.listen, insecure=options.insecure)
        hub.add_receiver(queue, tuple(options.topic or ("",))).result(options.timeout)
        options.link(hub)
        yield stop, hub, queue


def _opened_web_socket(hub: Any, url: str, options: ConnectOptions) -> Any:
    """Connect to a WebSocket."""
    from callboard.tls.contexts import Tls

    try:
        from callboard.zeek.doors.web_socket_peer import WebSocketPeer
    except ImportError as error:
        reason = f"this needs a package ({error.name})"
        raise CliError(why=reason, step="pip install 'callboard[websocket]'") from error
    if options.member or options.curve:
        raise UsageError(why="--member and --curve are for zmq:// only", step="omit them")
    token = ""
    if options.token_file is not None:
        try:
            token = options.token_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = f"no token in {options.token_file} ({error})"
            raise UsageError(why=reason, step="pass a file with the token") from None
    tls = None if options.zeek_tls is None else Tls.of_folder(options.zeek_tls)
    return WebSocketPeer(hub, url, name=options.name, token=token, tls=tls)


def _opened_zeromq(hub: Any, url: str, options: ConnectOptions) -> Any:
    """Connect to a cluster's ZeroMQ."""
    from callboard.broker import Endpoint

    try:
        from callboard.zeek.doors.zeromq_peer import ZeroMq, addresses_of
        from callboard.zeek.doors.zeromq_socket import Curve
    except ImportError as error:
        reason = f"this needs a package ({error.name})"
        raise CliError(why=reason, step="pip install 'callboard[zmq]'") from error
    if options.name or options.token_file or options.zeek_tls:
        reason = "--name, --token-file and --zeek-tls are for ws:// only"
        raise UsageError(why=reason, step="omit them; zmq:// has --member and --curve")
    curve = None if options.curve is None else Curve.of_file(options.curve)
    endpoint = Endpoint(node=hub.node)
    return ZeroMq(endpoint, *addresses_of(url), member=options.member, curve=curve)


def _print_connected(peer: Any, options: ConnectOptions, *, is_cluster: bool) -> None:
    """Print the peer that the command is connected to."""
    if is_cluster:
        facts, text = {"id": peer.id}, f"connected as {peer.id}"
    else:
        facts = {"endpoint": peer.endpoint, "version": peer.version}
        text = f"connected to {peer.endpoint} (version {peer.version})"
    options.say(facts, text, err=True)


@command(app)
def peer(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Its address.")],
    options: PeerOptions,
) -> None:
    """Peer with an endpoint of Zeek's Broker and print its messages, until Ctrl-C.

    A lost connection is restored. With --peer or --listen the messages also reach all
    subscribers in a callboard cluster, and the cluster's messages reach the endpoint.

    \b
    Examples:
      callboard zeek peer 127.0.0.1:9999 --topic /zeek
      callboard zeek peer zeek:9999 --wire zeek-1.4
      callboard zeek peer zeek:9999 --disable-ssl --json | jq .data
      callboard zeek peer zeek:9999 --certificates tls --peer basp://127.0.0.1:4222
    """  # noqa: D301
    from callboard.broker import Endpoint
    from callboard.kernel.errors import TlsError
    from callboard.model.errors import EndpointError

    host, port = _parse_address(address)
    with (
        _receiving(options) as (stop, hub, queue),
        explained((EndpointError, TlsError), "see callboard zeek peer --help"),
        Endpoint(_configuration(options), node=hub.node) as endpoint,
    ):
        endpoint.peer_nosync(host, port, wire=options.wire)
        peer_id = _await_peer(endpoint, options.timeout, stop)
        if peer_id is None:
            reason = f"no Broker endpoint answered at {address} within {options.timeout:g} s"
            raise CliError(why=reason, step="check the address, --disable-ssl and --wire")
        facts = {"endpoint": peer_id, "wire": options.wire}
        options.say(facts, f"peered with {peer_id} ({options.wire})", err=True)
        _print_all(queue, stop, options)


def _parse_address(text: str) -> tuple[str, int]:
    """Return host and port.

    Raises:
        UsageError: the text has another form.
    """
    from callboard.configuration import host_port

    try:
        return host_port.parse_listen(text)
    except ValueError as error:
        reason = f"{text!r} is not HOST:PORT"
        raise UsageError(why=reason, step="write it like 127.0.0.1:9999") from error


def _configuration(options: PeerOptions) -> Any:
    """Return the configuration of an endpoint for the options."""
    from callboard.broker import BrokerOptions, Configuration

    broker = BrokerOptions()
    broker.disable_ssl = options.disable_ssl
    configuration = Configuration(broker)
    if options.certificates is not None:
        folder = options.certificates
        configuration.openssl_cafile = str(folder / "authority.pem")
        configuration.openssl_certificate = str(folder / "certificate.pem")
        configuration.openssl_key = str(folder / "key.pem")
    return configuration


def _await_peer(endpoint: Any, timeout: float, stop: Any) -> str | None:
    """Return the id of the peer once it is peered; None after the timeout."""
    for _ in range(max(1, round(timeout / SIGNAL_POLL_SECONDS))):
        for info in endpoint.peers():
            if info.peer.type != "native" and info.status.name == "Peered":
                return str(info.peer.id)
        if stop.wait(SIGNAL_POLL_SECONDS):
            break
    return None


def _print_all(queue: Any, stop: Any, options: PrintOptions) -> None:
    """Print messages until a signal, or the given number."""
    count = 0
    while not stop.is_set() and not (options.count and count >= options.count):
        item = queue.get(SIGNAL_POLL_SECONDS)
        if item is not None:
            count += 1
            _print(*item, as_json=options.as_json)


@command(app)
def logger(
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="Folder of the logs, created if necessary."),
    ],
    options: LoggerOptions,
) -> int:
    """Receive the logs of Zeek nodes (8.1 and later, ZeroMQ), until Ctrl-C or SIGTERM.

    Each path, such as conn, becomes a log in its own folder, with Zeek's fields as columns. In
    Zeek: redef Cluster::Backend::ZeroMQ::connect_log_endpoints = vector("tcp://127.0.0.1:5557");
    Other machines can only connect with --curve.

    \b
    Examples:
      callboard zeek logger logs
      callboard zeek logger /var/lib/zeek --listen 0.0.0.0:5557 --curve keys.toml --retain seconds=604800
      callboard log sql 'select "id.orig_h", count(*) from log group by all' logs/conn
    """  # noqa: D301, E501
    return run_logger(folder, options)


def _print(topic: str, value: Any, *, as_json: bool) -> None:
    """Print a message in the format of `topic sub`."""
    if as_json:
        say(f'{{"topic": {to_json(topic)}, "data": {to_json(value)}}}')
    else:
        say(f"{topic}  {value if isinstance(value, str) else to_json(value)}")
