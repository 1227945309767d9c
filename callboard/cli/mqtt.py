"""`callboard mqtt …`: run and inspect an MQTT router."""

import contextlib
import json
import sys
import time
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from callboard.cli.cli_error import CliError, UsageError
from callboard.cli.options import JsonOptions, LookOptions, command, flag, noun, option
from callboard.cli.output import columns, say, to_json
from callboard.support.redaction import redacted
from callboard.support.text import printable

#: Timeout of the console in seconds.
PATIENCE: Final = 5.0

#: Longest text of the console's refusal, in bytes.
TEXT_LIMIT: Final = 1_000

#: Clients shown at a time.
SHOWN: Final = 30

#: Titles of the table of clients, and the console's names of the columns from the third on.
_HEAD: Final = ("CLIENT", "ADDRESS", "STATUS", "SUBS", "INFLIGHT", "BEHIND", "PACKETS")
_KEYS: Final = ("status", "subscriptions", "inflight", "behind", "packets_in")
_PIPE_IT: Final = "pipe one line of text into it, or run it in a terminal"

app = noun()

ConsoleUrl = Annotated[
    str, typer.Argument(metavar="URL", help="Of the router's console: http://HOST:PORT")
]


@dataclass(frozen=True, kw_only=True)
class RunRouterOptions(JsonOptions):
    """Address of a router without a configuration file."""

    listen: str = option(
        "127.0.0.1:1883", "Address for clients, without a FILE.", metavar="ADDRESS"
    )
    as_json: bool = flag("Print the addresses as JSON.", "--json")


@dataclass(frozen=True, kw_only=True)
class PasswordOptions(JsonOptions):
    """A password, and the forms in which it is stored."""

    password: str | None = option(
        None,
        "The password; default: prompt for it, or read it from a pipe.",
        envvar="MQTT_PASSWORD",
        hide_input=True,
    )
    scram: bool = flag("Add the keys for SCRAM-SHA-256.", "--scram")


@dataclass(frozen=True, kw_only=True)
class TraceOptions(JsonOptions):
    """The client whose packets are printed."""

    client: str = option(..., "The client's id.", metavar="ID")
    seconds: float = option(0, "Duration; 0 continues until Ctrl-C.", min=0)
    interval: float = option(0.25, "Seconds between updates.", min=0.05)
    as_json: bool = flag("Print a line of JSON per packet.", "--json")


class UserAction(StrEnum):
    """A change of a user."""

    ADD = "add"
    REMOVE = "remove"


class ListenerAction(StrEnum):
    """A change of a listener."""

    DISABLE = "disable"
    ENABLE = "enable"


@dataclass(frozen=True, kw_only=True)
class MosquittoOptions(JsonOptions):
    """Further files of mosquitto, and the file to write."""

    acl: Path | None = option(
        None, "File of topic rules, in place of acl_file.", metavar="FILE"
    )
    passwords: Path | None = option(
        None, "File of passwords, in place of password_file.", metavar="FILE"
    )
    output: Path | None = option(
        None, "File to write; it must not exist. Default: stdout.", metavar="FILE"
    )


@dataclass(frozen=True, kw_only=True)
class KickOptions(JsonOptions):
    """Whether the client may continue its session later."""

    session: bool = flag("End its session, too; also if the client is away.", "--session")


# --- run, check ---


@command(app)
def run(
    options: RunRouterOptions,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="TOML file of the router; optional."),
    ] = None,
) -> None:
    """Run a router until Ctrl-C or SIGTERM.

    Without a file it accepts all clients and keeps all data in memory. With a file, SIGHUP
    reads it again: new users, topic rules and bans take effect at once, also for connected
    clients. A file with errors changes nothing.

    \b
    Examples:
      callboard mqtt run
      callboard mqtt run --listen ws://127.0.0.1:9001
      callboard mqtt run mqtt.toml --json
    """  # noqa: D301
    from callboard.cli.work.router import route

    route(file, options.listen, options)


@command(app)
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="TOML file of the router.")],
    options: JsonOptions,
) -> None:
    """Check a configuration file, and print all errors, one per line.

    Its functions are imported, too; no port is opened.

    \b
    Examples:
      callboard mqtt check mqtt.toml
      callboard mqtt check mqtt.toml --json && callboard mqtt run mqtt.toml
    """  # noqa: D301
    from callboard.cli.work.router import load_config

    load_config(file)
    options.say({"valid": True}, f"{file} is valid")


# --- passwd ---


@command(app)
def passwd(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The user's name.")],
    options: PasswordOptions,
) -> None:
    """Print a user's entry for the configuration file, with the hash of a password.

    In a terminal it prompts for the password twice; elsewhere it reads the first line of stdin.
    So the password is not in the arguments, which all users of the machine can read.

    \b
    Examples:
      callboard mqtt passwd ann >> mqtt.toml
      pass show mqtt/ann | callboard mqtt passwd ann --json
    """  # noqa: D301
    entry = _user_entry(name, options)
    say(json.dumps(entry) if options.as_json else _entry_text(entry))


def _user_entry(name: str, options: PasswordOptions) -> dict[str, str]:
    """Return the entry of a user with the hashes of a password.

    Raises:
        UsageError: the name or the password cannot be used.
    """
    from callboard.mqtt.access.scram import make_keys
    from callboard.mqtt.access.scrypt import hash_password

    password = _ask_password() if options.password is None else options.password
    try:
        name.encode()
        entry = {"name": name, "password": str(hash_password(password.encode()))}
        if options.scram:
            entry["scram"] = str(make_keys(password))
    except UnicodeEncodeError as error:
        reason = "name and password must be UTF-8"
        raise UsageError(why=reason, step="use other characters") from error
    except ValueError as error:
        step = "choose another password, or omit --scram"
        raise UsageError(why=str(error), step=step) from error
    return entry


def _entry_text(entry: dict[str, str]) -> str:
    """Return the entry of a user as TOML."""
    from callboard.mqtt.service.mosquitto_import import toml_text

    lines = [f"{key} = {toml_text(value)}" for key, value in entry.items()]
    return "\n".join(["[[users]]", *lines])


def _ask_password() -> str:
    """Return the password: prompt for it twice in a terminal, else read a line of stdin.

    Raises:
        CliError: stdin contains no password.
    """
    if sys.stdin.isatty():
        entered: str = typer.prompt(
            "Password", hide_input=True, confirmation_prompt=True, err=True
        )
        return entered
    line = sys.stdin.buffer.readline().rstrip(b"\r\n")
    try:
        password = line.decode()
    except UnicodeDecodeError as error:
        raise UsageError(why="stdin is not UTF-8", step=_PIPE_IT) from error
    if not password:
        raise UsageError(why="stdin contains no password", step=_PIPE_IT)
    return password


# --- import ---


@command(app, "import")
def import_(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Configuration file of mosquitto.")
    ],
    options: MosquittoOptions,
) -> None:
    """Convert a configuration of mosquitto, with its topic rules and passwords.

    Prints the configuration of a router; hashes of passwords work unchanged. Settings without
    an equivalent are listed on stderr, and as comments in the file.

    \b
    Examples:
      callboard mqtt import /etc/mosquitto/mosquitto.conf --output mqtt.toml
      callboard mqtt import mosquitto.conf --acl acl --passwords passwd > mqtt.toml
    """  # noqa: D301
    from callboard.cli.work.router import write_new
    from callboard.mqtt.service.mosquitto_import import MosquittoError, import_files

    try:
        imported = import_files(file, options.acl, options.passwords)
    except MosquittoError as error:
        raise UsageError(why=str(error), step="give the path of mosquitto's file") from error
    missing = [str(item) for item in imported.unconverted]
    notes = [f"# {line}" for line in missing]
    head = [f"# converted from {file} by callboard mqtt import"]
    head += ["# without an equivalent:", *notes] if notes else []
    text = "\n".join([*head, "", imported.text])
    if options.output is not None:
        write_new(options.output, text)
    for line in missing:
        say(line, err=True)
    summary = f"wrote {options.output}" if options.output is not None else text.rstrip("\n")
    result = {
        "text": text,
        "unconverted": missing,
        "needless": [str(item) for item in imported.needless],
    }
    options.say(result, summary)


# --- changes of a running router ---


@command(app)
def user(
    action: Annotated[UserAction, typer.Argument(metavar="add|remove", help="The change.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="The user's name.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="TOML file of the router.")],
    options: PasswordOptions,
) -> None:
    """Add a user to a configuration file, or remove one, and reload a running router.

    `add` replaces the password of an existing user. `remove` also removes the user's topic
    rules, and the router disconnects the user's clients. The router is reloaded if the file has
    a `console`; otherwise send it SIGHUP. Other lines of the file do not change.

    \b
    Examples:
      callboard mqtt user add ann mqtt.toml
      callboard mqtt user remove ann mqtt.toml
    """  # noqa: D301
    from callboard.cli.work.router import change_file
    from callboard.mqtt.service.config_edit import with_user, without_user

    if action is UserAction.ADD:
        entry = _user_entry(name, options)
        table = change_file(file, lambda text: with_user(text, name, _entry_text(entry)))
    else:

        def remove(text: str) -> str:
            text, was_found = without_user(text, name)
            if not was_found:
                raise UsageError(why=f"{file} has no user {name!r}", step="check the name")
            return text

        table = change_file(file, remove)
    is_loaded = False
    if table.console is not None:
        with contextlib.suppress(CliError):
            is_loaded = bool(_ask(f"http://{table.console}", "/reload", posted=b"")["reloaded"])
    done = f"{action.value} {name}: {file} is changed"
    hint = "the router has reloaded it" if is_loaded else "send SIGHUP to a running router"
    options.say({"file": str(file), "reloaded": is_loaded}, f"{done}; {hint}")


@command(app)
def kick(
    client: Annotated[str, typer.Argument(metavar="ID", help="The client's id.")],
    options: KickOptions,
    url: ConsoleUrl = "http://127.0.0.1:9465",
) -> None:
    """Disconnect a client of a running router.

    It may connect again; to prevent that, ban it in the file.

    \b
    Examples:
      callboard mqtt kick sensor-1
      callboard mqtt kick sensor-1 http://127.0.0.1:9465 --session
    """  # noqa: D301
    posted = b"session" if options.session else b""
    report = _ask(url, f"/kick/{quote(client, safe='')}", posted)
    if not report["count"]:
        reason = f"the router has no client {client!r}"
        raise CliError(why=reason, step="list the clients with callboard mqtt top")
    options.say(report, f"disconnected {client}")


@command(app)
def purge(
    topic_filter: Annotated[
        str, typer.Argument(metavar="FILTER", help="Topic filter; '#' for all.")
    ],
    options: JsonOptions,
    url: ConsoleUrl = "http://127.0.0.1:9465",
) -> None:
    """Remove retained messages from a running router and its cluster.

    \b
    Examples:
      callboard mqtt purge 'sensors/#'
      callboard mqtt purge '#' http://127.0.0.1:9465 --json
    """  # noqa: D301
    report = _ask(url, f"/purge/{quote(topic_filter, safe='')}", posted=b"")
    options.say(report, f"removed {report['count']} retained messages")


@command(app)
def listener(
    action: Annotated[
        ListenerAction, typer.Argument(metavar="disable|enable", help="The change.")
    ],
    address: Annotated[
        str, typer.Argument(metavar="ADDRESS", help="Of the listener, as in the file.")
    ],
    options: JsonOptions,
    url: ConsoleUrl = "http://127.0.0.1:9465",
) -> None:
    """Close a listener of a running router, or open it again.

    Its clients are disconnected. After a restart of the router the listener is open.

    \b
    Examples:
      callboard mqtt listener disable tls://0.0.0.0:8883
      callboard mqtt listener enable tls://0.0.0.0:8883 http://127.0.0.1:9465
    """  # noqa: D301
    report = _ask(url, f"/{action.value}/{quote(address, safe='')}", posted=b"")
    if not report["count"]:
        state = "open" if action is ListenerAction.DISABLE else "disabled"
        reason = f"the router has no {state} listener {redacted(address)}"
        raise CliError(why=reason, step="write the address as in the router's file")
    options.say(report, f"{action.value}d {address}")


# --- top, trace ---


@command(app)
def top(options: LookOptions, url: ConsoleUrl = "http://127.0.0.1:9465") -> None:
    """Watch a router: rates, and the clients with the largest backlog.

    In a terminal the table is drawn in place; elsewhere each update is printed.

    \b
    Examples:
      callboard mqtt top
      callboard mqtt top http://127.0.0.1:9465 --interval 5 --count 12 --json
    """  # noqa: D301
    previous: dict[str, Any] | None = None
    with contextlib.suppress(KeyboardInterrupt), options.screen() as show:
        for _ in options.updates():
            report = _ask(url, "/router")
            devices = _ask(url, "/devices")["devices"]
            lines = _lines(report, previous, options.interval, devices)
            show({"router": report, "devices": devices}, "\n".join(lines))
            previous = report


@command(app)
def trace(options: TraceOptions, url: ConsoleUrl = "http://127.0.0.1:9465") -> None:
    """Print the packets of one client as they are exchanged.

    The client need not be connected yet.

    \b
    Examples:
      callboard mqtt trace --client sensor-1
      callboard mqtt trace http://127.0.0.1:9465 --client sensor-1 --seconds 10 --json
    """  # noqa: D301
    end = time.monotonic() + options.seconds if options.seconds else None
    since = 0
    was_connected: bool | None = None
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            path = f"/trace/{quote(options.client, safe='')}/{since}"
            report = _ask(url, path, posted=b"")
            if report["connected"] != was_connected and not options.as_json:
                state = "connected" if report["connected"] else "not connected"
                say(f"{options.client} is {state}")
            was_connected = report["connected"]
            for packet in report["packets"]:
                say(to_json(packet) if options.as_json else _packet_line(packet))
            since = report["count"]
            if end is not None and time.monotonic() >= end:
                return
            time.sleep(options.interval)


def _ask(url: str, path: str, posted: bytes | None = None) -> Any:
    """Return the console's reply to a request for a path.

    Raises:
        CliError: there is no answer, or the address is not a console's.
    """
    import urllib.error
    import urllib.request

    target = url.rstrip("/") + path
    if not target.startswith(("http://", "https://")):
        raise UsageError(why=f"{redacted(url)!r} is not a URL", step="write http://HOST:PORT")
    try:
        request = urllib.request.Request(target, data=posted)  # noqa: S310  # checked above
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:  # noqa: S310
            return json.load(answer)
    except urllib.error.HTTPError as error:
        reason = f"{target} answers {error.code}"
        text = printable(error.read(TEXT_LIMIT).decode(errors="replace").strip())
        if error.code == HTTPStatus.FORBIDDEN:
            raise CliError(
                why=f"{reason}: {text}", step="use the console's IP address"
            ) from None
        if error.code == HTTPStatus.BAD_REQUEST:
            raise UsageError(why=text, step="correct the argument") from None
    except (OSError, ValueError) as error:
        reason = f"no console answers at {redacted(url)}: {getattr(error, 'reason', error)}"
    raise CliError(why=reason, step='set console = "HOST:PORT" in the router\'s file')


def _lines(
    report: dict[str, Any],
    previous: dict[str, Any] | None,
    interval: float,
    devices: list[dict[str, Any]],
) -> list[str]:
    """Return the lines of an update: counts, rates, the clients with the largest backlog."""
    meters = report["meters"]

    def rate(name: str) -> str:
        if previous is None:
            return f"{meters[name]} in total"
        return f"{(meters[name] - previous['meters'][name]) / interval:.0f}/s"

    devices.sort(key=lambda device: (device["behind"], device["packets_in"]), reverse=True)
    rows = [
        (device["client_id"], device["address"] or "away", *(str(device[key]) for key in _KEYS))
        for device in devices[:SHOWN]
    ]
    return [
        f"{report['connections']} connected, {report['sessions_away']} away, "
        f"{report['filters']} filters, {report['retained']} retained, "
        f"{report['log_bytes'] / 1024:.0f} KiB in logs",
        f"published {rate('published')}, delivered {rate('delivered')}, lost {meters['lost']}",
        columns(_HEAD, rows, right={3, 4, 5, 6}),
    ]


def _packet_line(packet: dict[str, Any]) -> str:
    """Return a packet as a line of text."""
    hidden = {"number", "time", "direction", "packet"}
    arrow = "->" if packet["direction"] == "in" else "<-"
    fields = " ".join(f"{name}={value}" for name, value in packet.items() if name not in hidden)
    return f"{packet['time']:.3f} {arrow} {packet['packet']} {fields}"
