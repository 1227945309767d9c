"""The work of `callboard node run`: a node with its actors, its health, and its end."""

import contextlib
import logging
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from callboard.cli.loading import find_class, load_app, set_up, spawnable_classes
from callboard.cli.options import AccessOptions, JsonOptions, Proof, read_secrets
from callboard.cli.output import say
from callboard.cli.own_node import catch_signals, open_port, opening
from callboard.cli.problem import FAILED, MISUSED, Problem, Problems, one_line
from callboard.configuration.host_port import parse_host_port
from callboard.kernel.actors import Actor, Child
from callboard.kernel.errors import CallboardError
from callboard.kernel.events import RestartsExhausted
from callboard.kernel.tables import Drained
from callboard.kernel.tls import Limits, Tls
from callboard.node import Node
from callboard.operation.configuration import (
    InvalidConfiguration,
    NodeConfiguration,
    load_configuration,
)
from callboard.operation.health import HealthServer, given_up
from callboard.operation.logs import set_up_logging
from callboard.operation.notify import ServiceManager
from callboard.operation.permissions import PeerPermissions, load_permissions

_log = logging.getLogger("callboard.links")


def configure(file: Path | None, options: dict[str, Any]) -> NodeConfiguration:
    """Return the configuration of a file, the environment and the options.

    Raises:
        Problem: with a line for each mistake.
    """
    try:
        return load_configuration(file, options)
    except InvalidConfiguration as error:
        raise Problems(error.lines, code=MISUSED if error.is_misuse else FAILED) from error


def host(config: NodeConfiguration, options: AccessOptions) -> int:
    """Run a node until a signal comes or somebody drains it; returns the exit code.

    The first SIGTERM or SIGINT drains the node, a second one ends it at once. The code is 0
    when nothing was cut short and no supervisor gave up.
    """
    proof = options.proof()
    set_up_logging(config.log_level, config.log_format)
    manager = ServiceManager.from_environment()
    with catch_signals() as stop, contextlib.ExitStack() as stack:
        module = None if config.app is None else load_app(config.app)
        classes = spawnable(config, module)
        node = _make_node(config, classes, proof)
        ends = _Ends(stop, leaves_when_exhausted=config.when_exhausted == "exit")
        try:
            stack.enter_context(node.subscribed(ends.note))
            health = stack.enter_context(_health(node, config) or contextlib.nullcontext())
            stack.enter_context(_follow_secrets(node, config, options))
            _start(node, config, module)
            if config.serve_logs_at is not None:
                with opening(
                    config.serve_logs_at, what="serve logs at", option="serve_logs_at ="
                ):
                    node.listen_logs(config.serve_logs_at, tls=_tls(config, proof))
            if health is not None:
                health.set_ready()
            _introduce(node, sorted(classes), health, options)
            manager.ready(node)
            stop.wait()
            manager.stopping(config.drain_timeout)
            if not ends.reports:
                if not options.as_json:
                    limit = f"{config.drain_timeout:g} s at most"
                    say(f"{node.name} drains, {limit}; a second signal ends it at once")
                node.drain(config.drain_timeout)
            node.context.stopped.wait()  # somebody else may be closing it
            report, step = ends.reports[0], "give it longer with --drain-timeout SECONDS"
            options.say({"drained": report}, f"{node.name} stops after {ending(report)}")
            ends.complain_of_failures()
            complain_unless_clean(report, node.name, step)
            return 0
        except BaseException:
            node.close()
            raise


class _Ends:
    """Events that end the run of a node, and what is to be said then."""

    def __init__(self, stop: threading.Event, *, leaves_when_exhausted: bool) -> None:
        self._stop = stop
        self._leaves = leaves_when_exhausted
        self.reports: list[Drained] = []
        self._failures: list[str] = []

    def note(self, event: object) -> None:
        """Look at an event of the node."""
        if isinstance(event, Drained):
            self.reports.append(event)
            self._stop.set()
        elif isinstance(event, RestartsExhausted) and event.is_top:
            self._failures.append(given_up(event))
            if self._leaves:
                self._stop.set()

    def complain_of_failures(self) -> None:
        """Tell that the work of a supervisor was done by nobody at the end.

        Raises:
            Problem: so it was.
        """
        if self._failures:
            raise Problem(why=self._failures[0], step="see the log for why they ended")


def _make_node(
    config: NodeConfiguration, classes: dict[str, type[Actor]], proof: Proof
) -> Node:
    """Make the node of a configuration; options stand above its secret and TLS."""
    name = config.name or ("node" if config.app is None else config.app.stem)
    known = peers(config)
    return Node(
        name=name,
        spawnable=classes,
        join=config.join,
        secret=proof.secret or read_secrets(config.secret_file) or None,
        secrets=known.secrets,
        permissions=known.permissions,
        allow_unsealed=proof.allow_unsealed or config.allow_unsealed,
        tls=_tls(config, proof),
        encrypt=proof.encrypt or config.encrypt,
        serve_logs=config.serve_logs,
        limits=Limits(**dict(config.limits)),
    )


@contextlib.contextmanager
def _follow_secrets(
    node: Node, config: NodeConfiguration, options: AccessOptions
) -> Iterator[None]:
    """Let SIGHUP read the files of secrets again, where there are some."""
    if not (options.secret_file or config.secret_file or config.permissions):
        yield
        return

    def reload() -> None:
        try:
            secret = options.proof().secret or read_secrets(config.secret_file) or None
            ended = node.change_secrets(secret, peers(config).secrets)
        except (Problem, CallboardError, ValueError) as error:
            _log.error("%s; the secrets are what they were", one_line(str(error)))
        else:
            _log.warning("the secrets were read again; %d links end", ended)

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        threading.Thread(target=reload, name="secrets-reload", daemon=True).start()

    before = signal.signal(signal.SIGHUP, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def _tls(config: NodeConfiguration, proof: Proof) -> Tls | None:
    """Return the TLS of the options, else that of the configuration."""
    if proof.tls is not None or config.tls is None:
        return proof.tls
    return Tls(**dict(config.tls))


def peers(config: NodeConfiguration) -> PeerPermissions:
    """Return what peers may do, where a file says so.

    Raises:
        Problem: with a line for each mistake.
    """
    try:
        place = config.permissions
        return PeerPermissions() if place is None else load_permissions(place)
    except InvalidConfiguration as error:
        raise Problems(error.lines, code=FAILED) from error


def spawnable(config: NodeConfiguration, module: ModuleType | None) -> dict[str, type[Actor]]:
    """Return the classes that other nodes may spawn."""
    if config.spawnable is not None:
        return {name: find_class(text, module) for name, text in config.spawnable.items()}
    return {} if module is None else spawnable_classes(module)


def children(config: NodeConfiguration, module: ModuleType | None) -> list[Any]:
    """Return the actors that the node supervises."""
    return [
        Child(
            find_class(entry.actor_class, module),
            *entry.args,
            restart=entry.restart,
            name=entry.name,
            **({"on": entry.on} | entry.options if entry.on else entry.options),
        )
        for entry in config.children
    ]


def _start(node: Node, config: NodeConfiguration, module: ModuleType | None) -> None:
    """Start the children, call `setup`, and open the port."""
    supervised = children(config, module)
    if supervised:
        node.supervise(supervised)
    if module is not None and config.app is not None:
        set_up(module, node, config.app)
    open_port(node, config.listen, insecure=config.insecure)


def _health(node: Node, config: NodeConfiguration) -> HealthServer | None:
    """Return what serves the health of a node, if it is configured."""
    if config.health is None:
        return None
    with opening(config.health, what="serve health on", option="--health"):
        return HealthServer(
            node,
            *parse_host_port(config.health),
            joins=bool(config.join),
            hosts=config.health_hosts,
            option="health_hosts",
        )


def _introduce(
    node: Node, classes: list[str], health: HealthServer | None, options: JsonOptions
) -> None:
    """Tell how the node is reached."""
    where = None if health is None else health.url
    logs = node.logs_address if node.serves_by_flight else None
    entities = sorted(each.type for each in node.entity_stats())
    example = "entity ls {}" if entities and not classes else "actor call {}/NAME METHOD"
    about = {
        "address": node.address,
        "name": node.name,
        "node_id": node.node_id.hex(),
        "spawnable": classes,
        "entities": entities,
        "health": where,
        "logs": logs,
    }
    lines = [
        f"{node.name} listens on {node.address}",
        f"  spawnable: {', '.join(classes) or 'nothing'}",
        *([f"  entities: {', '.join(entities)}"] if entities else []),
        *([f"  health: {where}/readyz, {where}/metrics"] if where else []),
        *([f"  logs: {logs}/NAME"] if logs else []),
        f"  try: callboard {example.format(node.address)}   (Ctrl-C stops the node)",
    ]
    options.say(about, "\n".join(lines))


def ending(report: Drained) -> str:
    """Return how long a drain took, and what came of the messages."""
    return f"{report.seconds:.1f} s: {_counts(report)}"


def complain_unless_clean(report: Drained, who: str, step: str) -> None:
    """Tell of a drain that cut something short.

    Raises:
        Problem: it did.
    """
    if not report.is_clean:
        raise Problem(why=f"{who} was closed at its deadline, {_counts(report)}", step=step)


def _counts(report: Drained) -> str:
    return f"{report.finished:,} messages finished, {report.left:,} left"
