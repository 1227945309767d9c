"""`callboard flow …`: serve files as flows, send and receive flows."""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final

import typer

from callboard.cli.cli_error import FAILED, CliError, UsageError
from callboard.cli.options import AccessOptions, JsonOptions, command, flag, noun, option
from callboard.cli.output import from_text, to_json
from callboard.cli.own_node import catch_signals, opening, parse_listen
from callboard.support.files.private_file import make_folder

if TYPE_CHECKING:
    from callboard.flow import Flow
    from callboard.flow.file_handlers import FileRule

#: Name of these commands' own node.
NAME: Final = "callboard flow"

app = noun()

Address = Annotated[
    str, typer.Argument(metavar="ADDRESS", help="basp://HOST:PORT of the broker")
]


@dataclass(frozen=True, kw_only=True)
class ServeOptions(AccessOptions):
    """The folder of the files, and the address for clients."""

    root: Path = option(Path(), "Folder of the files.", metavar="FOLDER")
    listen: str = option("127.0.0.1:0", "Address for clients.", metavar="HOST:PORT")
    file_format: str = option("records", "Format of the files: records or hdf5.", "--format")
    insecure: bool = flag("Listen on public addresses without secret or TLS.", "--insecure")
    as_json: bool = flag("Print the address as JSON.", "--json")


@dataclass(frozen=True, kw_only=True)
class FlowOptions(AccessOptions):
    """Attributes and speed of a client's flow."""

    attribute: list[str] | None = option(
        None, "Attribute of the BOT; repeatable.", "--attribute", "-a", metavar="NAME=VALUE"
    )
    credit: int = option(10, "Most unacknowledged DATs.", min=1)
    timeout: float = option(10.0, "Timeout of each wait in seconds.", min=0.001)

    @contextlib.contextmanager
    def connect(
        self, address: str, direction: str, attributes: dict[str, Any]
    ) -> "Iterator[Flow]":
        """Open a flow.

        Raises:
            CliError: the broker refuses or ends the flow.
        """
        from callboard.flow import Flow, FlowEnded, FlowError
        from callboard.node import Node

        proof = self.proof()
        node = Node(
            NAME,
            secret=proof.secret,
            tls=proof.tls,
            allow_unsealed=proof.allow_unsealed,
            encrypt=proof.encrypt,
        )
        try:
            with (
                node,
                Flow.connect(
                    address,
                    direction,
                    self.credit,
                    self.timeout,
                    attributes=attributes,
                    node=node,
                ) as flow,
            ):
                yield flow
        except FlowEnded as error:
            raise CliError(why=str(error), step="see the log of the broker") from None
        except FlowError as error:
            raise CliError(why=str(error), step="see the rules and log of the broker") from None


@dataclass(frozen=True, kw_only=True)
class SendOptions(FlowOptions):
    """Options of sending."""

    chunk: int = option(65536, "Bytes of each DAT.", min=1)


@dataclass(frozen=True, kw_only=True)
class ReceiveOptions(FlowOptions):
    """Target of the payload."""

    output: Path | None = option(
        None, "File to write instead of stdout.", "--output", "-o", metavar="FILE"
    )
    as_json: bool = flag("Print one object per DAT, bytes as hex.", "--json")


@dataclass(frozen=True, kw_only=True)
class RulesOptions(JsonOptions):
    """The rules to try."""

    rules: Path = option(..., "TOML or JSON file of rules.", "--rules", "-r", metavar="RULES")


@command(app)
def serve(
    rules: Annotated[Path, typer.Argument(metavar="RULES", help="TOML or JSON file of rules.")],
    options: ServeOptions,
) -> None:
    """Write flows to files, and serve files as flows, until Ctrl-C or SIGTERM.

    The first rule that matches a client's attributes names its file in the folder.

    \b
    Examples:
      callboard flow serve rules.toml --root data
      callboard flow serve rules.toml --listen 127.0.0.1:4222 --format hdf5
    """  # noqa: D301
    from callboard.flow import FlowBroker
    from callboard.flow.errors import RecordError
    from callboard.flow.file_handlers import FileFactory
    from callboard.flow.file_service import FileService, open_format

    host, port = parse_listen(options.listen)
    file_rules = _rules(rules)
    try:
        open_format(options.file_format)
    except RecordError as error:
        raise UsageError(why=str(error), step="use --format records") from None
    root = options.root
    make_folder(root)
    with catch_signals() as stop, options.open_node(NAME) as node:
        service = node.spawn(FileService, str(root), options.file_format)
        broker = FlowBroker(node, factory=FileFactory(node, service, file_rules, root))
        with opening(options.listen):
            node.listen(host, port, publish=broker.ref, insecure=options.insecure)
        options.say(
            {"address": broker.address, "rules": len(file_rules)},
            f"{len(file_rules)} rules, files in {root.resolve()}\n"
            f"  try: callboard flow send {broker.address} FILE   (Ctrl-C stops it)",
        )
        stop.wait()
        broker.close()
        counters = broker.counters
    options.say(counters, f"{counters.ended} flows ended", err=options.as_json)


@command(app)
def send(
    address: Address,
    options: SendOptions,
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE…", help="Files to send; default: stdin."),
    ] = None,
) -> None:
    """Send files, or stdin, as one flow.

    For a single file the attribute `name` defaults to its name.

    \b
    Examples:
      callboard flow send basp://127.0.0.1:4222 -a stream=raw run1.dat
      tail -f log | callboard flow send basp://127.0.0.1:4222 -a stream=log
    """  # noqa: D301
    attributes = _attributes(options.attribute)
    paths = files or []
    if len(paths) == 1:
        attributes.setdefault("name", paths[0].name)
    missing = [str(path) for path in paths if not path.is_file()]
    if missing:
        raise UsageError(why=f"there is no file {missing[0]}", step="pass paths of files")
    with options.connect(address, "extract", attributes) as flow:
        for source in _sources(paths):
            while data := source.read(options.chunk):
                flow.put(data)
        reply = flow.eot()
    text = ", ".join(f"{key}: {value}" for key, value in reply.items())
    options.say(reply, text)


@command(app)
def recv(address: Address, options: ReceiveOptions) -> None:
    """Receive a flow and write its payload to stdout or a file.

    \b
    Examples:
      callboard flow recv basp://127.0.0.1:4222 -a stream=raw -o run1.dat
    """  # noqa: D301
    attributes = _attributes(options.attribute)
    with contextlib.ExitStack() as stack:
        flow = stack.enter_context(options.connect(address, "inject", attributes))
        sink: BinaryIO = sys.stdout.buffer
        if options.output is not None:
            sink = stack.enter_context(options.output.open("wb"))
        for dat in flow:
            sink.write(f"{to_json(dat)}\n".encode() if options.as_json else bytes(dat))
        sink.flush()


@command(app, "test-rules")
def try_rules(
    options: RulesOptions,
    attributes: Annotated[
        list[str] | None, typer.Argument(metavar="NAME=VALUE…", help="Attributes of a client.")
    ] = None,
) -> int:
    """Print which rules match some attributes, and the files that they name.

    The exit code is 0 if one matches, else 1.

    \b
    Examples:
      callboard flow test-rules -r rules.toml stream=raw host=a
    """  # noqa: D301
    about = _attributes(attributes)
    lines = [_outcome(rule, about) for rule in _rules(options.rules)]
    for line in lines:
        verdict = "TRUE " if line["holds"] else "FALSE"
        text = f"{verdict} {line['rw']} {line['path'] or line['error']}"
        options.say(line, text)
    return 0 if any(line["holds"] for line in lines) else FAILED


def _attributes(pairs: Sequence[str] | None) -> dict[str, Any]:
    """Read `NAME=VALUE` pairs; values are JSON or text.

    Raises:
        CliError: a pair has another form.
    """
    values = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UsageError(why=f"{pair!r} is not NAME=VALUE", step="write it like stream=raw")
        values[name] = from_text(value)
    return values


def _outcome(rule: "FileRule", about: dict[str, Any]) -> dict[str, Any]:
    """Return whether a rule matches some attributes, and the file that it names."""
    from callboard.flow.errors import InvalidRule

    root = Path.cwd().resolve()
    path, error = "", ""
    try:
        path = rule.path(about, root).relative_to(root).as_posix()
    except InvalidRule as reason:
        error = str(reason)
    return {"holds": rule.holds(about), "rw": rule.rw, "path": path, "error": error}


def _rules(path: Path) -> "list[FileRule]":
    """Read the file of rules."""
    from callboard.flow.errors import InvalidRule
    from callboard.flow.file_handlers import load_rules

    try:
        return load_rules(path)
    except InvalidRule as error:
        raise UsageError(why=str(error), step="correct the file of rules") from None


def _sources(files: Sequence[Path]) -> Iterator[BinaryIO]:
    """Open the files in turn; stdin if there are none."""
    if not files:
        yield sys.stdin.buffer
    for path in files:
        with path.open("rb") as file:
            yield file
