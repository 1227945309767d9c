"""The work of `callboard flow …`."""

import contextlib
import json
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import typer

from callboard import Node
from callboard.cli.credentials import Credentials
from callboard.cli.failure import FAILED, MISUSED, Failure
from callboard.cli.listening import catch_signals, parse_listen
from callboard.cli.values import from_text, to_json
from callboard.flow import Flow, FlowBroker, FlowEnded, FlowError
from callboard.flow.errors import InvalidRule, RecordError
from callboard.flow.file_handlers import FileFactory, FileRule, load_rules
from callboard.flow.file_service import FileService, open_format


def read_attributes(pairs: Sequence[str]) -> dict[str, Any]:
    """Read `NAME=VALUE` pairs; values are JSON, or else text.

    Raises:
        Failure: a pair has another form.
    """
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise Failure(
                why=f"{pair!r} is no NAME=VALUE", step="write stream=raw", code=MISUSED
            )
        found[name] = from_text(value)
    return found


def serve_files(
    rules: Path,
    *,
    root: Path,
    listen: str,
    file_format: str,
    insecure: bool,
    credentials: Credentials,
    as_json: bool,
) -> int:
    """Serve files until a signal comes; returns the exit code."""
    host, port = parse_listen(listen)
    known = _rules(rules)
    try:
        open_format(file_format)
    except RecordError as error:
        raise Failure(why=str(error), step="say --format records", code=MISUSED) from None
    root.mkdir(parents=True, exist_ok=True)
    stop = threading.Event()
    with catch_signals(stop), Node(secret=credentials.secret, tls=credentials.tls) as node:
        service = node.spawn(FileService, str(root), file_format)
        broker = FlowBroker(node, factory=FileFactory(node, service, known, root))
        try:
            node.listen(host, port, publish=broker.ref, insecure=insecure)
        except OSError as error:
            raise Failure(
                why=f"cannot listen on {listen}: {error.strerror or error}",
                step="choose another --listen HOST:PORT, port 0 picks a free one",
            ) from error
        if as_json:
            typer.echo(json.dumps({"address": broker.address, "rules": len(known)}))
        else:
            typer.echo(f"{len(known)} rules, files in {root.resolve()}")
            typer.echo(f"  try: callboard flow send {broker.address} FILE   (Ctrl-C stops it)")
        sys.stdout.flush()
        stop.wait()
        broker.close()
        counters = broker.counters
    typer.echo(to_json(counters) if as_json else f"{counters.ended} flows ended", err=as_json)
    return 0


def send_files(
    address: str,
    files: Sequence[Path],
    *,
    attributes: Sequence[str],
    credit: int,
    chunk: int,
    timeout: float,
    credentials: Credentials,
    as_json: bool,
) -> int:
    """Send files, or stdin, as one flow; returns the exit code."""
    about = read_attributes(attributes)
    if len(files) == 1:
        about.setdefault("name", files[0].name)
    missing = [str(path) for path in files if not path.is_file()]
    if missing:
        raise Failure(
            why=f"there is no file {missing[0]}", step="give paths of files", code=MISUSED
        )
    with _connected(address, "extract", about, credit, timeout, credentials) as flow:
        for source in _sources(files):
            while data := source.read(chunk):
                flow.put(data)
        said = flow.eot()
    typer.echo(to_json(said) if as_json else ", ".join(f"{k}: {v}" for k, v in said.items()))
    return 0


def receive_flow(
    address: str,
    output: Path | None,
    *,
    attributes: Sequence[str],
    credit: int,
    timeout: float,
    credentials: Credentials,
    as_json: bool,
) -> int:
    """Take a flow and write its payload; returns the exit code."""
    about = read_attributes(attributes)
    with contextlib.ExitStack() as opened:
        flow = opened.enter_context(
            _connected(address, "inject", about, credit, timeout, credentials)
        )
        sink: BinaryIO = sys.stdout.buffer
        if output is not None:
            sink = opened.enter_context(output.open("wb"))
        for dat in flow:
            sink.write(f"{to_json(dat)}\n".encode() if as_json else bytes(dat))
        sink.flush()
    return 0


def print_rules(rules: Path, pairs: Sequence[str], *, as_json: bool) -> int:
    """Say which rules fit; returns the exit code."""
    about = read_attributes(pairs)
    lines = [_outcome(rule, about) for rule in _rules(rules)]
    for line in lines:
        if as_json:
            typer.echo(to_json(line))
        else:
            verdict = "TRUE " if line["holds"] else "FALSE"
            typer.echo(f"{verdict} {line['rw']} {line['path'] or line['error']}")
    return 0 if any(line["holds"] for line in lines) else FAILED


def _outcome(rule: FileRule, about: dict[str, Any]) -> dict[str, Any]:
    root = Path.cwd().resolve()
    path, error = "", ""
    try:
        path = rule.path(about, root).relative_to(root).as_posix()
    except InvalidRule as reason:
        error = str(reason)
    return {"holds": rule.holds(about), "rw": rule.rw, "path": path, "error": error}


def _rules(path: Path) -> list[FileRule]:
    try:
        return load_rules(path)
    except InvalidRule as error:
        raise Failure(why=str(error), step="correct the file of rules", code=MISUSED) from None


def _sources(files: Sequence[Path]) -> Iterator[BinaryIO]:
    if not files:
        yield sys.stdin.buffer
    for path in files:
        with path.open("rb") as file:
            yield file


@contextlib.contextmanager
def _connected(
    address: str,
    direction: str,
    about: dict[str, Any],
    credit: int,
    timeout: float,
    credentials: Credentials,
) -> Iterator[Flow]:
    try:
        with Flow.connect(
            address,
            direction,
            credit,
            timeout,
            attributes=about,
            secret=credentials.secret,
            tls=credentials.tls,
        ) as flow:
            yield flow
    except FlowEnded as error:
        raise Failure(why=str(error), step="see the log of the broker") from None
    except FlowError as error:
        raise Failure(why=str(error), step="see the rules and log of the broker") from None
