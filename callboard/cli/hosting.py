"""The work of `callboard node run`."""

import contextlib
import json
import logging
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import typer

from callboard import Node
from callboard.cli.credentials import Credentials
from callboard.cli.failure import FAILED, MISUSED, Failure
from callboard.cli.loading import load_app, set_up, spawnable_classes
from callboard.cli.values import to_json

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def host(
    path: Path,
    *,
    listen: str,
    join: tuple[str, ...],
    name: str,
    insecure: bool,
    credentials: Credentials,
    drain_timeout: float,
    as_json: bool,
) -> int:
    """Run a node with the actors of a file until a signal comes; returns the exit code.

    The first SIGTERM or SIGINT drains the node, a second one ends it at once. The code is 0
    when nothing was cut short.
    """
    address, port = parse_listen(listen)
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    stop = threading.Event()
    with catch_signals(stop):
        module = load_app(path)
        classes = spawnable_classes(module)
        node = Node(
            name or path.stem,
            spawnable=classes,
            join=join,
            secret=credentials.secret,
            tls=credentials.tls,
        )
        try:
            set_up(module, node, path)
            open_port(node, address, port, insecure=insecure)
            _introduce(node, sorted(classes), as_json=as_json)
            stop.wait()
            return _drain(node, drain_timeout, as_json=as_json)
        except KeyboardInterrupt:
            return _force(node)
        except BaseException:
            node.close()
            raise


@contextlib.contextmanager
def catch_signals(stop: threading.Event) -> Iterator[None]:
    """Let the first signal set `stop`, also during the set-up, and the next one interrupt."""

    def ask_to_stop(_number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, ask_to_stop) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _drain(node: Node, timeout: float, *, as_json: bool) -> int:
    if not as_json:
        typer.echo(
            f"{node.name} drains, {timeout:g} s at most; a second signal ends it at once"
        )
    report = node.drain(timeout)
    text = f"{report.finished:,} messages finished, {report.left:,} left"
    if as_json:
        typer.echo(to_json({"drained": report}))
    else:
        typer.echo(f"{node.name} stops after {report.seconds:.1f} s: {text}")
    if report.is_clean:
        return 0
    typer.echo(
        f"callboard: {node.name} was closed at its deadline, {text}; "
        "give it longer with --drain-timeout SECONDS",
        err=True,
    )
    return FAILED


def _force(node: Node) -> int:
    """End at once: nothing is closed in order, the others see the links break."""
    typer.echo(
        f"callboard: {node.name} was ended by a second signal; one signal lets it finish first",
        err=True,
    )
    return FAILED


def open_port(node: Node, address: str, port: int, *, insecure: bool) -> None:
    """Let a node listen.

    Raises:
        Failure: the port is taken, or the address is not one of this machine.
    """
    try:
        node.listen(address, port, insecure=insecure)
    except OSError as error:
        raise Failure(
            why=f"cannot listen on {address}:{port}: {error.strerror or error}",
            step="choose another --listen HOST:PORT, port 0 picks a free one",
        ) from error


def parse_listen(text: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`; an IPv6 host may stand in brackets.

    Raises:
        Failure: the text is something else.
    """
    address, colon, port = text.rpartition(":")
    if not colon or not address or not port.isdecimal() or int(port) > 65535:
        raise Failure(
            why=f"{text!r} is no HOST:PORT",
            step="write it like --listen 127.0.0.1:4222",
            code=MISUSED,
        )
    return address.strip("[]"), int(port)


def _introduce(node: Node, classes: list[str], *, as_json: bool) -> None:
    if as_json:
        about = {
            "address": node.address,
            "name": node.name,
            "node_id": node.node_id.hex(),
            "spawnable": classes,
        }
        typer.echo(json.dumps(about))
        return
    typer.echo(f"{node.name} listens on {node.address}")
    typer.echo(f"  spawnable: {', '.join(classes) or 'nothing'}")
    typer.echo(
        f"  try: callboard actor call {node.address}/NAME METHOD   (Ctrl-C stops the node)"
    )
