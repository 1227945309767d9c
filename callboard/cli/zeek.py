"""`callboard zeek …`: Zeeks as neighbours."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from callboard.cli.options import command, noun, option
from callboard.cli.output import say, to_json
from callboard.cli.own_node import JoinOptions, catch_signals, open_port
from callboard.cli.problem import Misuse, Problem, explained

#: What the node of these commands calls itself.
ZEEK_NODE: Final = "callboard zeek"

#: Seconds between two looks whether a signal came.
SIGNAL_LOOK: Final = 0.05

app = noun()


@dataclass(frozen=True, kw_only=True)
class ConnectOptions(JoinOptions):
    """How a Zeek is reached, and what is printed."""

    topic: list[str] | None = option(
        None, "What printed topics begin with; repeatable; default: all.", metavar="TOPIC"
    )
    name: str = option("", "What this application is called there.")
    token_file: Path | None = option(None, "File with the token to show.", metavar="FILE")
    zeek_tls: Path | None = option(
        None, "Folder with authority.pem, for wss://; default: the system's.", metavar="FOLDER"
    )
    count: int = option(0, "End after so many messages; 0 is no end.", min=0)
    timeout: float = option(10.0, "Seconds for Zeek and each peer to answer.", min=0.001)


@command(app)
def connect(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="ws://HOST:PORT or wss://…, with path or not.")
    ],
    options: ConnectOptions,
) -> None:
    """Connect to a Zeek's WebSocket and print what it publishes, until Ctrl-C or SIGTERM.

    A lost connection is made again. With --peer or --listen the Zeek is a neighbour of a
    cluster: what it publishes reaches all who subscribe there.

    \b
    Examples:
      callboard zeek connect ws://127.0.0.1:27759
      callboard zeek connect ws://zeek:27759 --topic /zeek/notice --json | jq .data
      callboard zeek connect wss://zeek --token-file token --peer basp://127.0.0.1:4222
    """  # noqa: D301
    from callboard.endpoint.hub import Hub
    from callboard.endpoint.message_queue import MessageQueue
    from callboard.model.errors import EndpointError
    from callboard.proxies.errors import TlsError
    from callboard.proxies.link.tls import Tls

    try:
        from callboard.doors.web_socket_peer import WebSocketPeer
    except ImportError as error:
        why = f"this needs a package ({error.name})"
        raise Problem(why=why, step="pip install 'callboard[websocket]'") from error
    token = ""
    if options.token_file is not None:
        try:
            token = options.token_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            why = f"no token in {options.token_file} ({error})"
            raise Misuse(why=why, step="name a file with the token") from None
    queue: MessageQueue[Any] = MessageQueue()
    with catch_signals() as stop, options.open_node(ZEEK_NODE) as node:
        hub = Hub.of(node)
        if options.listen:
            open_port(node, options.listen, insecure=options.insecure)
        hub.add_receiver(queue, tuple(options.topic or ("",))).result(options.timeout)
        options.link(hub)
        tls = None if options.zeek_tls is None else Tls.of_folder(options.zeek_tls)
        with explained((EndpointError, TlsError), "see callboard zeek connect --help"):
            peer = WebSocketPeer(hub, url, name=options.name, token=token, tls=tls)
        with peer:
            if not peer.await_subscribed(options.timeout):
                why = peer.reason or f"no acknowledgment came from {url}"
                raise Problem(why=why.partition(";")[0], step="see the address, or --timeout")
            options.say(
                {"endpoint": peer.endpoint, "version": peer.version},
                f"connected to {peer.endpoint} (version {peer.version})",
                err=True,
            )
            seen = 0
            while not stop.is_set() and not (options.count and seen >= options.count):
                item = queue.get(SIGNAL_LOOK)
                if item is not None:
                    seen += 1
                    _print(*item, as_json=options.as_json)


def _print(topic: str, value: Any, *, as_json: bool) -> None:
    """Print a message as `topic sub` does."""
    if as_json:
        say(f'{{"topic": {to_json(topic)}, "data": {to_json(value)}}}')
    else:
        say(f"{topic}  {value if isinstance(value, str) else to_json(value)}")
