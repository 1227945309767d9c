"""The work of `callboard node run`."""

import json
import logging
import signal
import threading
from pathlib import Path
from types import FrameType

import typer

from callboard import Node
from callboard.cli.credentials import Credentials
from callboard.cli.failure import MISUSED, Failure
from callboard.cli.loading import load_app, set_up, spawnable_classes

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def host(
    path: Path,
    *,
    listen: str,
    join: tuple[str, ...],
    name: str,
    insecure: bool,
    credentials: Credentials,
    as_json: bool,
) -> None:
    """Run a node with the actors of a file until a signal comes."""
    address, port = parse_listen(listen)
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    stop = threading.Event()

    def ask_to_stop(_number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt  # the second time at once, also out of a setup that hangs
        stop.set()

    # From the start on, so that a signal during the set-up ends the node in order too.
    before = {number: signal.signal(number, ask_to_stop) for number in SIGNALS}
    try:
        module = load_app(path)
        classes = spawnable_classes(module)
        with Node(
            name or path.stem,
            spawnable=classes,
            join=join,
            secret=credentials.secret,
            tls=credentials.tls,
        ) as node:
            set_up(module, node, path)
            _listen(node, address, port, insecure=insecure)
            _introduce(node, sorted(classes), as_json=as_json)
            stop.wait()
            if not as_json:
                typer.echo(f"{node.name} stops")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _listen(node: Node, address: str, port: int, *, insecure: bool) -> None:
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
