"""`callboard flow …`: serve files as flows, send and take flows."""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final

import typer

from callboard.cli.options import AccessOptions, JsonOptions, command, flag, noun, option
from callboard.cli.output import from_text, to_json
from callboard.cli.own_node import catch_signals, opening, parse_listen
from callboard.cli.problem import FAILED, Misuse, Problem
from callboard.support.private_file import make_folder

if TYPE_CHECKING:
    from callboard.flow import Flow
    from callboard.flow.file_handlers import FileRule

#: What the node of these commands calls itself.
NAME: Final = "callboard flow"

app = noun()

Address = Annotated[
    str, typer.Argument(metavar="ADDRESS", help="basp://HOST:PORT of the broker")
]


@dataclass(frozen=True, kw_only=True)
class ServeOptions(AccessOptions):
    """Where files are, and where clients reach them."""

    root: Path = option(Path(), "Where the files are.", metavar="FOLDER")
    listen: str = option("127.0.0.1:0", "Where clients reach it.", metavar="HOST:PORT")
    file_format: str = option("records", "Of the files: records or hdf5.", "--format")
    insecure: bool = flag("Listen on public addresses without secret or TLS.", "--insecure")
    as_json: bool = flag("Print the address as JSON.", "--json")


@dataclass(frozen=True, kw_only=True)
class FlowOptions(AccessOptions):
    """What a client says of its flow, and how quick it is."""

    attribute: list[str] | None = option(
        None, "For the BOT; repeatable.", "--attribute", "-a", metavar="NAME=VALUE"
    )
    credit: int = option(10, "DATs that may be under way.", min=1)
    timeout: float = option(10.0, "Seconds that each wait may take.", min=0.001)

    @contextlib.contextmanager
    def connect(
        self, address: str, direction: str, attributes: dict[str, Any]
    ) -> "Iterator[Flow]":
        """Open a flow.

        Raises:
            Problem: the broker refuses or ends it.
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
            raise Problem(why=str(error), step="see the log of the broker") from None
        except FlowError as error:
            raise Problem(why=str(error), step="see the rules and log of the broker") from None


@dataclass(frozen=True, kw_only=True)
class SendOptions(FlowOptions):
    """How files are sent."""

    chunk: int = option(65536, "Bytes of each DAT.", min=1)


@dataclass(frozen=True, kw_only=True)
class ReceiveOptions(FlowOptions):
    """Where a payload goes."""

    output: Path | None = option(None, "Instead of stdout.", "--output", "-o", metavar="FILE")
    as_json: bool = flag("One object for each DAT, bytes as hex.", "--json")


@dataclass(frozen=True, kw_only=True)
class RulesOptions(JsonOptions):
    """Which rules are tried."""

    rules: Path = option(..., "TOML or JSON file of rules.", "--rules", "-r", metavar="RULES")


@command(app)
def serve(
    rules: Annotated[Path, typer.Argument(metavar="RULES", help="TOML or JSON file of rules.")],
    options: ServeOptions,
) -> None:
    """Write flows to files, and give files as flows, until Ctrl-C or SIGTERM.

    The first rule that fits what a client says names its file, in the folder.

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
    known = _rules(rules)
    try:
        open_format(options.file_format)
    except RecordError as error:
        raise Misuse(why=str(error), step="say --format records") from None
    root = options.root
    make_folder(root)
    with catch_signals() as stop, options.open_node(NAME) as node:
        service = node.spawn(FileService, str(root), options.file_format)
        broker = FlowBroker(node, factory=FileFactory(node, service, known, root))
        with opening(options.listen):
            node.listen(host, port, publish=broker.ref, insecure=options.insecure)
        options.say(
            {"address": broker.address, "rules": len(known)},
            f"{len(known)} rules, files in {root.resolve()}\n"
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
        list[Path] | None, typer.Argument(metavar="FILE…", help="What to send; else stdin.")
    ] = None,
) -> None:
    """Send files, or stdin, as one flow.

    With one file the attribute `name` is its name, unless it is given.

    \b
    Examples:
      callboard flow send basp://127.0.0.1:4222 -a stream=raw run1.dat
      tail -f log | callboard flow send basp://127.0.0.1:4222 -a stream=log
    """  # noqa: D301
    about = _attributes(options.attribute)
    given = files or []
    if len(given) == 1:
        about.setdefault("name", given[0].name)
    missing = [str(path) for path in given if not path.is_file()]
    if missing:
        raise Misuse(why=f"there is no file {missing[0]}", step="give paths of files")
    with options.connect(address, "extract", about) as flow:
        for source in _sources(given):
            while data := source.read(options.chunk):
                flow.put(data)
        told = flow.eot()
    text = ", ".join(f"{key}: {value}" for key, value in told.items())
    options.say(told, text)


@command(app)
def recv(address: Address, options: ReceiveOptions) -> None:
    """Take a flow and write its payload to stdout or a file.

    \b
    Examples:
      callboard flow recv basp://127.0.0.1:4222 -a stream=raw -o run1.dat
    """  # noqa: D301
    about = _attributes(options.attribute)
    with contextlib.ExitStack() as opened:
        flow = opened.enter_context(options.connect(address, "inject", about))
        sink: BinaryIO = sys.stdout.buffer
        if options.output is not None:
            sink = opened.enter_context(options.output.open("wb"))
        for dat in flow:
            sink.write(f"{to_json(dat)}\n".encode() if options.as_json else bytes(dat))
        sink.flush()


@command(app, "test-rules")
def try_rules(
    options: RulesOptions,
    attributes: Annotated[
        list[str] | None, typer.Argument(metavar="NAME=VALUE…", help="What a client would say.")
    ] = None,
) -> int:
    """Say which rules fit some attributes, and the files that they name.

    The exit code is 0 when one fits, else 1.

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
    """Read `NAME=VALUE` pairs; values are JSON, or else text.

    Raises:
        Problem: a pair has another form.
    """
    found = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise Misuse(why=f"{pair!r} is no NAME=VALUE", step="write stream=raw")
        found[name] = from_text(value)
    return found


def _outcome(rule: "FileRule", about: dict[str, Any]) -> dict[str, Any]:
    """Return whether a rule fits some attributes, and the file that it names."""
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
        raise Misuse(why=str(error), step="correct the file of rules") from None


def _sources(files: Sequence[Path]) -> Iterator[BinaryIO]:
    """Open the files one after the other; stdin without any."""
    if not files:
        yield sys.stdin.buffer
    for path in files:
        with path.open("rb") as file:
            yield file
