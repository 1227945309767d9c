"""The work of `callboard node run`."""

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import typer

from actors.actor import Actor
from callboard import Limits, Node, Tls
from callboard.cli.credentials import Credentials, read_secret
from callboard.cli.failure import FAILED, MISUSED, Failure, Failures
from callboard.cli.listening import catch_signals, open_port
from callboard.cli.loading import find_class, load_app, set_up, spawnable_classes
from callboard.cli.values import to_json
from callboard.operation.configuration import (
    ConfigurationError,
    NodeConfiguration,
    load_configuration,
)
from callboard.operation.health import HealthServer
from callboard.operation.logs import set_up_logging
from callboard.operation.notify import ServiceManager
from callboard.operation.settings import parse_host_port
from proxies.draining import Drained


def configure(file: Path | None, options: dict[str, Any]) -> NodeConfiguration:
    """Return the configuration of a file, the environment and the options.

    Raises:
        Failure: with a line for each mistake.
    """
    try:
        return load_configuration(file, options)
    except ConfigurationError as error:
        raise Failures(error.lines, code=MISUSED if error.is_misuse else FAILED) from error


def check(file: Path) -> None:
    """Check a configuration file, and that its classes can be loaded.

    Raises:
        Failure: with a line for each mistake.
    """
    config = configure(file, {})
    module = None if config.app is None else load_app(config.app)
    _spawnable(config, module)
    _children(config, module)


def host(config: NodeConfiguration, *, credentials: Credentials, as_json: bool) -> int:
    """Run a node until a signal comes or somebody drains it; returns the exit code.

    The first SIGTERM or SIGINT drains the node, a second one ends it at once. The code is 0
    when nothing was cut short.
    """
    set_up_logging(config.log_level)
    stop = threading.Event()
    manager = ServiceManager.from_environment()
    with catch_signals(stop), contextlib.ExitStack() as stack:
        module = None if config.app is None else load_app(config.app)
        classes = _spawnable(config, module)
        node = _make_node(config, classes, credentials)
        reports: list[Drained] = []

        def note(event: object) -> None:
            if isinstance(event, Drained):
                reports.append(event)
                stop.set()

        try:
            stack.enter_context(node.subscribed(note))
            health = stack.enter_context(_health(node, config))
            _start(node, config, module)
            if health is not None:
                health.set_ready()
            _introduce(node, sorted(classes), health, as_json=as_json)
            manager.ready(node)
            stop.wait()
            manager.stopping(config.drain_timeout)
            if not reports:
                _announce_drain(node, config.drain_timeout, as_json=as_json)
                node.drain(config.drain_timeout)
            node.runtime.runner.stopped.wait()  # somebody else may be closing it
            return _conclude(node, reports[0], as_json=as_json)
        except BaseException:
            node.close()
            raise


# --- from the configuration to a node ---


def _make_node(
    config: NodeConfiguration, classes: dict[str, type[Actor]], credentials: Credentials
) -> Node:
    name = config.name or ("node" if config.app is None else config.app.stem)
    secret, tls = credentials.secret, credentials.tls
    if secret is None:
        secret = read_secret(config.secret_file)
    if tls is None and config.tls is not None:
        tls = Tls(**dict(config.tls))
    return Node(
        name=name,
        spawnable=classes,
        join=config.join,
        secret=secret,
        tls=tls,
        limits=Limits(**dict(config.limits)),
    )


def _spawnable(config: NodeConfiguration, module: ModuleType | None) -> dict[str, type[Actor]]:
    if config.spawnable is not None:
        return {name: find_class(text, module) for name, text in config.spawnable.items()}
    return {} if module is None else spawnable_classes(module)


def _children(config: NodeConfiguration, module: ModuleType | None) -> list[Any]:
    from callboard import Child

    return [
        Child(
            find_class(entry.actor_class, module),
            *entry.args,
            restart=entry.restart,
            name=entry.name,
            **entry.options,
        )
        for entry in config.children
    ]


def _start(node: Node, config: NodeConfiguration, module: ModuleType | None) -> None:
    children = _children(config, module)
    if children:
        node.supervise(children)
    if module is not None and config.app is not None:
        set_up(module, node, config.app)
    open_port(node, config.listen, insecure=config.insecure)


@contextlib.contextmanager
def _health(node: Node, config: NodeConfiguration) -> Iterator[HealthServer | None]:
    if config.health is None:
        yield None
        return
    address, port = parse_host_port(config.health)
    try:
        server = HealthServer(node, address, port, joins=bool(config.join))
    except OSError as error:
        raise Failure(
            why=f"cannot serve health on {config.health}: {error.strerror or error}",
            step="choose another --health HOST:PORT, port 0 picks a free one",
        ) from error
    with server:
        yield server


# --- what is said ---


def _introduce(
    node: Node, classes: list[str], health: HealthServer | None, *, as_json: bool
) -> None:
    where = "" if health is None else health.url
    if as_json:
        about = {
            "address": node.address,
            "name": node.name,
            "node_id": node.node_id.hex(),
            "spawnable": classes,
            "health": where or None,
        }
        typer.echo(json.dumps(about))
        return
    typer.echo(f"{node.name} listens on {node.address}")
    typer.echo(f"  spawnable: {', '.join(classes) or 'nothing'}")
    if where:
        typer.echo(f"  health: {where}/readyz, {where}/metrics")
    typer.echo(
        f"  try: callboard actor call {node.address}/NAME METHOD   (Ctrl-C stops the node)"
    )


def _announce_drain(node: Node, timeout: float, *, as_json: bool) -> None:
    if not as_json:
        text = f"{node.name} drains, {timeout:g} s at most; a second signal ends it at once"
        typer.echo(text)


def _conclude(node: Node, report: Drained, *, as_json: bool) -> int:
    text = f"{report.finished:,} messages finished, {report.left:,} left"
    if as_json:
        typer.echo(to_json({"drained": report}))
    else:
        typer.echo(f"{node.name} stops after {report.seconds:.1f} s: {text}")
    if report.is_clean:
        return 0
    raise Failure(
        why=f"{node.name} was closed at its deadline, {text}",
        step="give it longer with --drain-timeout SECONDS",
    )
