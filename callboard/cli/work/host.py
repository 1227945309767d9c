"""Implementation of `callboard node run`: a node with its actors and its health server."""

import contextlib
import logging
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from callboard.cli.cli_error import FAILED, MISUSED, CliError, CliErrors, one_line
from callboard.cli.hosting.spans import spans_exported
from callboard.cli.loading import find_class, load_app, set_up, spawnable_classes, tear_down
from callboard.cli.options import AccessOptions, JsonOptions, Proof, read_secrets
from callboard.cli.output import say
from callboard.cli.own_node import catch_signals, open_port, opening
from callboard.configuration.host_port import parse_host_port
from callboard.kernel.actors import Actor, Child
from callboard.kernel.errors import CallboardError
from callboard.kernel.events import RestartsExhausted
from callboard.kernel.ports import Limits
from callboard.kernel.tables import Drained
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
from callboard.tls.contexts import Tls

_log = logging.getLogger("callboard.links")
_node_log = logging.getLogger("callboard.nodes")


def configure(file: Path | None, options: dict[str, Any]) -> NodeConfiguration:
    """Return the configuration from a file, the environment and the options.

    Raises:
        CliErrors: the configuration has errors; there is a line for each.
    """
    try:
        return load_configuration(file, options)
    except InvalidConfiguration as error:
        raise CliErrors(error.lines, code=MISUSED if error.is_misuse else FAILED) from error


def host(config: NodeConfiguration, options: AccessOptions) -> int:
    """Run a node until a signal or a drain; return the exit code.

    The first SIGTERM or SIGINT drains the node; a second one ends it at once. The code is 0 if
    all work was finished and no supervisor gave up.
    """
    set_up_logging(config.log_level, config.log_format)
    if config.log_format != "json":
        return _host(config, options)
    try:
        return _host(config, replace(options, as_json=True))
    except CliError as error:  # a line of JSON instead of plain text
        for line in error.lines:
            _node_log.error("%s", line)
        return error.code


def _host(config: NodeConfiguration, options: AccessOptions) -> int:
    """Run a node as `host` does."""
    proof = options.proof()
    manager = ServiceManager.from_environment()
    name = config.name or ("node" if config.app is None else config.app.stem)
    with catch_signals() as stop, contextlib.ExitStack() as stack:
        stack.enter_context(spans_exported(config.tracing, name))
        module = None if config.app is None else load_app(config.app)
        classes = spawnable(config, module)
        node = _make_node(config, classes, proof)
        ends = _Ends(stop, leaves_when_exhausted=config.when_exhausted == "exit")
        try:
            stack.enter_context(node.subscribed(ends.record))
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
            failure = tear_down(module, node, config.app)
            if not ends.reports:
                if not options.as_json:
                    limit = f"for at most {config.drain_timeout:g} s"
                    say(f"{node.name} drains {limit}; a second signal ends it at once")
                node.drain(config.drain_timeout)
            node.context.stopped.wait()  # a remote drain may still be closing it
            report, step = ends.reports[0], "allow more time with --drain-timeout SECONDS"
            options.say({"drained": report}, f"{node.name} stops after {ending(report)}")
            ends.complain_of_failures()
            if failure is not None:
                raise failure
            complain_unless_clean(report, node.name, step)
            return 0
        except BaseException:
            node.close()
            raise


class _Ends:
    """Events that end the run of a node."""

    def __init__(self, stop: threading.Event, *, leaves_when_exhausted: bool) -> None:
        self._stop = stop
        self._leaves = leaves_when_exhausted
        self.reports: list[Drained] = []
        self._failures: list[str] = []

    def record(self, event: object) -> None:
        """Record an event of the node, and end the run if it demands that."""
        if isinstance(event, Drained):
            self.reports.append(event)
            self._stop.set()
        elif isinstance(event, RestartsExhausted) and event.is_top:
            self._failures.append(given_up(event))
            if self._leaves:
                self._stop.set()

    def complain_of_failures(self) -> None:
        """Report that a supervisor gave up.

        Raises:
            CliError: a supervisor gave up.
        """
        if self._failures:
            raise CliError(why=self._failures[0], step="see the log for why they ended")


def _make_node(
    config: NodeConfiguration, classes: dict[str, type[Actor]], proof: Proof
) -> Node:
    """Create the node of a configuration; the options' secret and TLS take precedence."""
    name = config.name or ("node" if config.app is None else config.app.stem)
    peer_permissions = peers(config)
    return Node(
        name=name,
        spawnable=classes,
        join=config.join,
        secret=proof.secret or read_secrets(config.secret_file) or None,
        secrets=peer_permissions.secrets,
        permissions=peer_permissions.permissions,
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
    """Reload the files of secrets on SIGHUP, if there are any."""
    if not (options.secret_file or config.secret_file or config.permissions):
        yield
        return

    def reload() -> None:
        try:
            secret = options.proof().secret or read_secrets(config.secret_file) or None
            ended = node.change_secrets(secret, peers(config).secrets)
        except (CliError, CallboardError, ValueError) as error:
            _log.error("%s; the secrets are unchanged", one_line(str(error)))
        else:
            _log.warning("the secrets were reloaded; %d links end", ended)

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        threading.Thread(target=reload, name="secrets-reload", daemon=True).start()

    previous = signal.signal(signal.SIGHUP, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, previous)


def _tls(config: NodeConfiguration, proof: Proof) -> Tls | None:
    """Return the TLS settings of the options, else of the configuration."""
    if proof.tls is not None or config.tls is None:
        return proof.tls
    return Tls(**dict(config.tls))


def peers(config: NodeConfiguration) -> PeerPermissions:
    """Return the rights of the peers, if a file configures them.

    Raises:
        CliErrors: the configuration has errors; there is a line for each.
    """
    try:
        place = config.permissions
        return PeerPermissions() if place is None else load_permissions(place)
    except InvalidConfiguration as error:
        raise CliErrors(error.lines, code=FAILED) from error


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
    """Return the health server, if it is configured."""
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
    """Print the addresses of the node."""
    health_url = None if health is None else health.url
    logs = node.logs_address if node.serves_by_flight else None
    entities = sorted(stats.type for stats in node.entity_stats())
    example = "entity ls {}" if entities and not classes else "actor call {}/NAME METHOD"
    summary = {
        "address": node.address,
        "name": node.name,
        "node_id": node.node_id.hex(),
        "spawnable": classes,
        "entities": entities,
        "health": health_url,
        "logs": logs,
    }
    lines = [
        f"{node.name} listens on {node.address}",
        f"  spawnable: {', '.join(classes) or 'nothing'}",
        *([f"  entities: {', '.join(entities)}"] if entities else []),
        *([f"  health: {health_url}/readyz, {health_url}/metrics"] if health_url else []),
        *([f"  logs: {logs}/NAME"] if logs else []),
        f"  try: callboard {example.format(node.address)}   (Ctrl-C stops the node)",
    ]
    options.say(summary, "\n".join(lines))


def ending(report: Drained) -> str:
    """Return the duration of a drain, and the message counts."""
    return f"{report.seconds:.1f} s: {_counts(report)}"


def complain_unless_clean(report: Drained, label: str, step: str) -> None:
    """Report a drain that did not finish all work.

    Raises:
        CliError: the drain did not finish all work.
    """
    if not report.is_clean:
        raise CliError(why=f"{label} was closed at its deadline, {_counts(report)}", step=step)


def _counts(report: Drained) -> str:
    return f"{report.finished:,} messages finished, {report.left:,} left"
