"""The work of `callboard gateway …`."""

import json
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from callboard.cli.columns import columns
from callboard.cli.failure import FAILED, MISUSED, Failure, Failures
from callboard.cli.listening import catch_signals
from callboard.cli.values import to_json
from callboard.gateway import (
    ConfigurationError,
    Gateway,
    MalformedMessage,
    Message,
    ModuleFailed,
    ModuleStatus,
)
from callboard.gateway.configuration import Configuration, read_configuration, read_file
from callboard.gateway.modules.lines import message_of, read_line

Line = tuple[str, Message]


def check_gateway(config: Path, *, as_json: bool) -> int:
    """Check a configuration; returns the exit code."""
    found = _read(config)
    if as_json:
        typer.echo(json.dumps({"modules": len(found.modules), "links": len(found.links)}))
    else:
        typer.echo(f"{config} is fine: {len(found.modules)} modules, {len(found.links)} links")
    return 0


def list_gateway(config: Path, *, as_json: bool) -> int:
    """List modules and links of a configuration; returns the exit code."""
    found = _read(config)
    if as_json:
        modules = [
            {
                "name": spec.name,
                "loader": spec.loader.name,
                "entrypoint": spec.entrypoint,
                "args": spec.args,
            }
            for spec in found.modules.values()
        ]
        links = [{"source": source, "sink": sink} for source, sink in found.links]
        typer.echo(to_json({"modules": modules, "links": links}))
        return 0
    rows = []
    for spec in found.modules.values():
        sources = ", ".join(source for source, sink in found.links if sink == spec.name)
        what = " ".join(str(value) for value in spec.entrypoint.values())
        rows.append((spec.name, spec.loader.name, what, sources))
    typer.echo(columns(("MODULE", "LOADER", "IS", "RECEIVES FROM"), rows))
    return 0


def run_gateway(config: Path, *, watch: bool, as_json: bool) -> int:
    """Run a gateway until a signal comes; returns the exit code."""
    stop = threading.Event()
    with catch_signals(stop), _made(config, watch=watch) as gateway:
        gateway.on("destroyed", lambda _: stop.set())
        if as_json:
            typer.echo(json.dumps({"url": gateway.url, "modules": len(gateway.modules())}))
        else:
            names = ", ".join(status.name for status in gateway.modules())
            typer.echo(f"{config} runs: {names}   (Ctrl-C stops it)")
        sys.stdout.flush()
        gateway.start()
        stop.wait()
        gateway.settle(1.0)
        statuses = gateway.modules()
    _print(statuses, as_json=as_json)
    return 0


def run_dry(config: Path, given: Path, *, timeout: float, as_json: bool) -> int:
    """Publish what a file holds, and say what became of it; returns the exit code."""
    lines = _lines(given)
    with _made(config, watch=False) as gateway:
        known = {status.name for status in gateway.modules()}
        for number, (source, _) in enumerate(lines, 1):
            if source not in known:
                raise Failure(
                    why=f"{given}:{number}: there is no module {source!r} in {config}",
                    step="name one of its modules as source",
                    code=MISUSED,
                )
        gateway.start(leave_out={source for source, _ in lines})
        for source, message in lines:
            gateway.publish(source, message)
        is_settled = gateway.settle(timeout)
        statuses = gateway.modules()
    _print(statuses, as_json=as_json)
    if not is_settled:
        raise Failure(
            why=f"not all was received within {timeout:g} s",
            step="give it longer with --timeout SECONDS",
        )
    return FAILED if any(each.counters.failed or each.counters.lost for each in statuses) else 0


def _read(config: Path) -> Configuration:
    try:
        return read_configuration(read_file(config), source=str(config), folder=config.parent)
    except ConfigurationError as error:
        raise Failures(error.lines, code=MISUSED) from None


def _made(config: Path, *, watch: bool) -> Gateway:
    try:
        return Gateway.from_file(config, start=False, watch=watch)
    except ConfigurationError as error:
        raise Failures(error.lines, code=MISUSED) from None
    except ModuleFailed as error:
        raise Failure(why=f"{config}: {error}", step="correct its args; nothing runs") from None


def _lines(given: Path) -> list[Line]:
    found: list[Line] = []
    try:
        for number, text in enumerate(given.read_bytes().splitlines(), 1):
            fields = read_line(text)
            source = fields.get("source")
            if not isinstance(source, str):
                raise Failure(
                    why=f"{given}:{number}: source = {source!r}: it is the name of a module",
                    step="correct that line",
                    code=MISUSED,
                )
            found.append((source, message_of(fields)))
    except OSError as error:
        raise Failure(
            why=f"{given}: {error.strerror}", step="give the path of a file", code=MISUSED
        ) from None
    except MalformedMessage as error:
        where = f"{given}:{len(found) + 1}"
        raise Failure(why=f"{where}: {error}", step="correct that line", code=MISUSED) from None
    return found


def _print(statuses: Sequence[ModuleStatus], *, as_json: bool) -> None:
    if as_json:
        typer.echo(to_json([_fields(status) for status in statuses]))
        return
    rows = []
    for status in statuses:
        counters = status.counters
        numbers = (counters.received, counters.failed, sum(counters.lost.values()))
        rows.append((status.name, *map(str, numbers), str(status.waiting)))
    head = ("MODULE", "RECEIVED", "FAILED", "LOST", "WAITING")
    typer.echo(columns(head, rows, right=range(1, 5)))


def _fields(status: ModuleStatus) -> dict[str, Any]:
    counters = status.counters
    return {
        "name": status.name,
        "received": counters.received,
        "failed": counters.failed,
        "lost": counters.lost,
        "waiting": status.waiting,
        "restarts": counters.restarts,
        "unlinked": counters.unlinked,
    }
