"""The router as a program runs it: an actor with its ports, on a node.

    with Router() as router:                 # or: async with Router() as router
        router.port

The actor has a separate thread, and all connections are served on its loop. The packets of a
read go to the actor's mailbox as one chunk. The actor takes its turn after the loop has served
all ready sockets; the output of the turn is written at once.
"""

import asyncio
import contextlib
import gc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final, Self, TypeVar
from weakref import WeakMethod

from callboard import locks
from callboard.arguments import require
from callboard.closing import Closing, on_a_thread
from callboard.configuration.host_port import parse_host_port
from callboard.kernel.access import Rights
from callboard.kernel.actors import ActorRef
from callboard.kernel.context import CallBack
from callboard.kernel.errors import ActorDown, CallboardError
from callboard.kernel.shutdown import Phase
from callboard.mqtt.access.auth import Security
from callboard.mqtt.port.limits import NetworkLimits
from callboard.mqtt.port.local_link import LocalLink
from callboard.mqtt.port.network import RouterNetwork
from callboard.mqtt.port.trace import Tracer
from callboard.mqtt.router.limits import Limits
from callboard.mqtt.router.link import RouterMailbox
from callboard.mqtt.router.machine import RouterMachine
from callboard.mqtt.router.message import MessageRun
from callboard.mqtt.service.bridge import (
    FORMER_CLIENT_ID,
    BridgeConnection,
    BridgeSettings,
    default_client_id,
    session_name,
)
from callboard.mqtt.service.config import RouterConfig
from callboard.mqtt.service.figures import (
    RUNNING,
    RouterState,
    RunningRouter,
    SysTopics,
    backlog,
)
from callboard.mqtt.service.forwarding import RULE_PREFIX, Forwarder, session_id
from callboard.mqtt.service.router_actor import (
    CloseRouter,
    OpenPorts,
    RouterActor,
    check_journal,
)
from callboard.mqtt.service.rules import Rule, RuleRunner
from callboard.mqtt.wire.client import Message
from callboard.mqtt.wire.codec import decode_packet
from callboard.mqtt.wire.errors import ListenError, RouterClosed
from callboard.mqtt.wire.packet import V4, V5, Publish
from callboard.mqtt.wire.reason_code import ReasonCode
from callboard.mqtt.wire.topic import check_filter
from callboard.node import Node
from callboard.pages import PageServer
from callboard.support.inspection_tables import Row

T = TypeVar("T")

#: Inspection tables of a router's node; `console`, which makes their rows, is imported lazily.
TRACE_PART: Final = "mqtt_trace"
PARTS: Final = (
    *("mqtt", "mqtt_clients", "mqtt_subscriptions", "mqtt_retained", "mqtt_slow"),
    *("mqtt_bridges", "mqtt_bans"),
    TRACE_PART,
)

#: Seconds for opening the ports and reading the journal.
START_TIMEOUT: Final = 30.0
#: Seconds for disconnecting the clients and closing the journal.
STOP_TIMEOUT: Final = 10.0

#: New objects before a collection of the youngest generation; Python's default is 700.
YOUNG: Final = 20_000

#: Collections of a generation before the next older one is collected.
OLD: Final = 50


class Router(Closing):
    """An MQTT router in this process."""

    def __init__(self, config: RouterConfig | None = None, *, node: Node | None = None) -> None:
        """Make a router; use it as a context manager, or call `start`.

        Args:
            config: the config of the router.
            node: the router's actor runs there; without it the router makes a node.

        Raises:
            ListenError: the configuration lacks a listener.
        """
        usage = "Router(config) takes a RouterConfig; `callboard mqtt run FILE` reads a file"
        require(isinstance(config, RouterConfig | None), usage, config)
        require(isinstance(node, Node | None), "Router(node=…) takes a Node", node)
        self.config = config or RouterConfig()
        if not self.config.listeners:
            message = "a router needs a listener; give it one, such as ListenerSettings()"
            raise ListenError(message)
        self._owns_node = node is None
        self._node = node
        self._mailbox = RouterMailbox()
        self._ref: ActorRef | None = None
        self._actor: RouterActor | None = None
        #: The bridges to other brokers; the runner of rules, None without any.
        self.bridges: list[BridgeConnection] = []
        self.rules: RuleRunner | None = None
        #: Rules whose messages leave the router, and their forwarders.
        self._forwarders: list[tuple[Rule, Forwarder]] = []
        self._reload_turn = locks.Turn()
        self._console: PageServer | None = None
        self._tracer: Tracer | None = None
        #: Reads the configuration again, for the console; None for a router without a file.
        self.reload_file: Callable[[], list[str]] | None = None
        self._beside = contextlib.ExitStack()
        self._is_closed = False

    # --- life ---

    def start(self) -> Self:
        """Open the ports; returns when they are open.

        Raises:
            ListenError: a port cannot be opened.
            LogError: the journal cannot be read.
            RouterClosed: the router was started or closed before.
        """
        if self._is_closed or self._ref is not None:
            message = "a router can be started only once; make another one"
            raise RouterClosed(message)
        node = self._node = self._node or Node(self.config.name)
        try:
            self._ref = node.spawn(RouterActor, self._mailbox, self.config, self._attach)
            problem = self._ref.ask(OpenPorts(), timeout=START_TIMEOUT).result(START_TIMEOUT)
            if problem is not None:
                raise problem
            self._start_beside()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Disconnect the clients, and end. Idempotent; blocks until it is done."""
        if self._is_closed:
            return
        if self._actor is not None:
            self._actor.ending.set()
        with contextlib.suppress(CallboardError):  # for example, the node was closed first
            self._beside.close()
        self._is_closed = True
        try:
            if self._ref is not None:
                with contextlib.suppress(ActorDown):  # for example, its journal failed
                    self._ref.ask(CloseRouter(), timeout=STOP_TIMEOUT).result(STOP_TIMEOUT)
        finally:
            if self._owns_node and self._node is not None:
                self._node.close()

    def _attach(self, actor: RouterActor) -> None:
        """Store the actor of this router."""
        self._actor = actor

    def _start_beside(self) -> None:
        """Start the services of the router: `$SYS`, rules, bridges, the console."""
        config, stack = self.config, self._beside
        state = RouterState(self.machine, self.edge.connections, self.bridges)
        running = RunningRouter(config.name, self.addresses[0], state)
        RUNNING.add(running)
        stack.callback(RUNNING.discard, running)
        if config.sys_interval:
            interval, loop = config.sys_interval, self.edge.loop
            topics = self.call(SysTopics, self._mailbox, state, interval, loop)
            stack.callback(self.call, topics.close)
        stack.callback(self._stop_rules)
        self._apply_rules(config.rules)
        for settings in self._named(config.bridges):
            bridge = BridgeConnection(
                self._mailbox,
                settings,
                self.edge.connections.report_certificates,
                partial(backlog, self.machine, session_name(settings.client_id)),
            )
            self.bridges.append(bridge)
            serving = asyncio.run_coroutine_threadsafe(bridge.run(), self.edge.loop)
            stack.callback(bridge.ended, serving)
        assert self._node is not None
        for part in PARTS:
            rows = partial(self._rows, part, state)
            stack.callback(self._node.overlay.add_table(part, rows))
        if config.console is not None:
            self._console = self._open_console(config.console, state)
            stack.callback(self._console.close)

    def _apply_rules(self, rules: tuple[Rule, ...]) -> None:
        """Start rules, stop the ones that are not among them, and end their sessions."""
        if self.rules is not None:
            self.rules.replace(rules)
        elif any(not rule.is_forwarded for rule in rules):
            self.rules = RuleRunner(self._mailbox, rules)
        for rule, forwarder in self._forwarders[:]:
            if rule not in rules:
                self._forwarders.remove((rule, forwarder))
                forwarder.close()
        started = [rule for rule, _ in self._forwarders]
        for rule in rules:
            if rule.is_forwarded and rule not in started:
                self._forwarders.append((rule, self._forward(rule)))
        self.call(
            self._end_sessions,
            RULE_PREFIX,
            {_session_of(rule) for rule in rules if rule.to is not None},
        )

    def _stop_rules(self) -> None:
        """Stop all rules; their sessions stay."""
        if self.rules is not None:
            self.rules.close()
        for _, forwarder in self._forwarders:
            forwarder.close()

    def _forward(self, rule: Rule) -> Forwarder:
        """Start a rule whose messages leave the router."""
        assert self._node is not None
        assert rule.to is not None
        name, filters = _session_of(rule), [(rule.topic_filter, rule.qos)]
        return Forwarder(self.link, self._node, name, filters, rule.to, rule.forward)

    def _end_sessions(self, prefix: str, names: set[str]) -> None:
        """End the sessions with a prefix that have none of these names."""
        sessions = self.machine.sessions
        for client_id in [session.client_id for session in sessions]:
            if client_id.startswith(prefix) and client_id not in names:
                sessions.give_up(client_id)
                self._mailbox.wake()

    def _named(self, bridges: Iterable[BridgeSettings]) -> Iterator[BridgeSettings]:
        """Return the settings of bridges with the client id of each.

        Raises:
            ListenError: two bridges have one client id; they would share a session.
        """
        config, names = self.config, {each.client_id for each in bridges if each.client_id}
        used: set[str] = set()
        for settings in bridges:
            name = settings.client_id
            if not name and FORMER_CLIENT_ID not in names:
                # A journal of 0.1 has the session and its messages under that name.
                former = session_name(FORMER_CLIENT_ID)
                if self.call(self.machine.sessions.get, former) is not None:
                    name = FORMER_CLIENT_ID
                    names.add(name)
            if not name:
                name = default_client_id(config.name, config.directory, settings.address)
            if name in used:
                message = f"two bridges have the client_id {name!r}; give each its own"
                raise ListenError(message)
            used.add(name)
            yield replace(settings, client_id=name)

    def _open_console(self, address: str, state: RouterState) -> PageServer:
        """Open the console's port."""
        from callboard.mqtt.service.console import ConsoleActions, ConsolePages

        pages = ConsolePages(self.call, state, lambda: self.config)
        actions = ConsoleActions(self, state)
        host, port = parse_host_port(address)
        try:
            return PageServer(pages, host, port, actions=actions, hosts=self.config.hosts)
        except OSError as error:
            reason = f"{error.strerror}; choose another"
            message = f"the console's {address} cannot be opened: {reason}"
            raise ListenError(message) from error

    async def _rows(
        self, part: str, state: RouterState, client_id: str, permits: Rights | None
    ) -> list[Row]:
        """Return the rows of an inspection table; only full members see clients."""
        from callboard.mqtt.service import console

        if self._ref is None or (permits is not None and part != "mqtt"):
            return []
        if part == TRACE_PART:
            tracer = self._tracer = self._tracer or Tracer(state.connections.clock)
            look = partial(console.traced, tracer, state, client_id)
        else:
            look = partial(console.part_rows, part, state, self.config)
        order = CallBack(partial(_outcome, look, ()))
        done, value = await self._ref.ask(order, timeout=STOP_TIMEOUT)
        if not done:
            raise value
        rows: list[Row] = value
        return rows

    def __enter__(self) -> Self:
        return self.start()

    async def __aenter__(self) -> Self:
        await on_a_thread(self.start)
        return self

    # --- properties ---

    @property
    def ref(self) -> ActorRef:
        """The router's actor."""
        self._running()
        assert self._ref is not None
        return self._ref

    @property
    def port(self) -> int:
        """The TCP port of the first listener; 0 for a Unix socket."""
        return self.edge.listeners[0].port

    @property
    def addresses(self) -> list[str]:
        """The addresses of all listeners, with the ports that were picked."""
        return [listener.address for listener in self.edge.listeners]

    @property
    def forwarders(self) -> list[Forwarder]:
        """The forwarders of rules whose messages leave the router."""
        return [forwarder for _, forwarder in self._forwarders]

    @property
    def console_url(self) -> str | None:
        """The URL of the console; None without one."""
        return None if self._console is None else self._console.url

    @property
    def machine(self) -> RouterMachine:
        """The machine; access it through `call` only."""
        return self._running().machine

    @property
    def edge(self) -> RouterNetwork:
        """The network side of the router; access it through `call` only."""
        return self._running().edge

    def _running(self) -> RouterActor:
        """Return the actor; the router must be running."""
        if self._actor is None or self._is_closed:
            message = "the router does not run; use it in a with block, or call start()"
            raise RouterClosed(message)
        return self._actor

    def reload(
        self,
        security: Security | None = None,
        *,
        limits: Limits | None = None,
        network: NetworkLimits | None = None,
        rules: tuple[Rule, ...] | None = None,
    ) -> None:
        """Replace parts of the configuration.

        Args:
            security: users, rules and bans; they apply to connected clients, too.
            limits: the limits of new connections and new logs.
            network: limits of new connections.
            rules: all rules. Those that exist stay as they are; those that are missing end,
                with the messages that wait for them.

        Raises:
            CallboardError: the destination of a rule cannot be opened, or another reload is
                running. Nothing was changed.
            JournalFailed: packets may be larger than fits into the journal.
            RouterClosed: the router is not running.
        """
        config = replace(
            self.config,
            security=security or self.config.security,
            limits=limits or self.config.limits,
            network=network or self.config.network,
            rules=self.config.rules if rules is None else rules,
        )
        check_journal(config)
        self._running()
        if not self._reload_turn.take():
            message = "another reload of this router is running; repeat it later"
            raise RouterClosed(message)
        try:
            self._reload_rules(config.rules)
            self.call(self._reload, config)
            self.config = config
        finally:
            self._reload_turn.end()

    def _reload_rules(self, rules: tuple[Rule, ...]) -> None:
        """Replace the rules; restore the former ones if a new one cannot start."""
        if rules == self.config.rules:
            return
        try:
            self._apply_rules(rules)
        except Exception:
            self._apply_rules(self.config.rules)
            raise

    def _reload(self, config: RouterConfig) -> None:
        """Apply a configuration; on the router's thread."""
        if config.security is not self.config.security:
            self.edge.reload(config.security)
        self.machine.effects.limits = config.limits
        self.edge.connections.set_limits(config.network_limits())

    # --- operation ---

    def kick(self, client_id: str, *, end_session: bool = False) -> bool:
        """Disconnect a client; return whether it was connected, or had a session to end.

        Args:
            client_id: the client id.
            end_session: whether its session ends, too; also if the client is away.

        Raises:
            RouterClosed: the router is not running.
        """
        return self.call(self._kick, client_id, end_session)

    def _kick(self, client_id: str, end_session: bool) -> bool:  # noqa: FBT001
        """Disconnect a client; on the router's thread."""
        sessions, reason = self.machine.sessions, ReasonCode.ADMINISTRATIVE_ACTION
        session = sessions.get(client_id)
        if session is None or (session.connection is None and not end_session):
            return False
        if end_session:
            sessions.give_up(client_id, reason)
            self._mailbox.wake()
        elif session.connection is not None:
            session.connection.link.disconnect(reason, is_told=True)
        return True

    def purge_retained(self, topic_filter: str = "#") -> int:
        """Remove the retained messages of a filter, on all routers of the cluster.

        Subscribers see the removal as MQTT has it: a message without payload. Return the number
        of removed messages.

        Raises:
            RouterClosed: the router is not running.
            ValueError: the text is not a topic filter.
        """
        check_filter(topic_filter)

        def topics() -> list[str]:
            retained, now = self.machine.logs.retained, self.machine.effects.now
            return [run.topic.decode() for run in retained.match(topic_filter, now)]

        found_topics = self.call(topics)
        with self.link() as link:
            done = (
                link.publish_all(
                    Message(topic, b"", qos=1, retain=True) for topic in found_topics
                )
                if found_topics
                else []
            )
            for future in done:
                future.result(STOP_TIMEOUT)
        return len(found_topics)

    def disable(self, address: str) -> bool:
        """Close a listener, and disconnect its clients; return whether it was open.

        Raises:
            RouterClosed: the router is not running.
        """
        return self.call(self.edge.disable, address)

    def enable(self, address: str) -> bool:
        """Open a listener again after `disable`; return whether it was closed.

        Raises:
            ListenError: the port cannot be opened.
            RouterClosed: the router is not running.
        """
        opening = self.edge.enable(address)
        return asyncio.run_coroutine_threadsafe(opening, self.edge.loop).result(STOP_TIMEOUT)

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function on the router's thread and return its result.

        Raises:
            RouterClosed: the router is not running.
            Exception: whatever the function raises.
        """
        if self._running().is_here():
            return function(*args)
        assert self._ref is not None
        try:
            order = CallBack(partial(_outcome, function, args))
            done, value = self._ref.ask(order, timeout=STOP_TIMEOUT).result()
        except CallboardError as error:
            if self._is_closed:
                message = "the router was closed during the call"
                raise RouterClosed(message) from error
            raise
        if not done:
            raise value
        result: T = value
        return result

    # --- clients in the process ---

    def link(self, client_id: str = "", **options: Any) -> LocalLink:
        """Return a client of this router without a socket; the options are `LocalLink`'s.

        Raises:
            RouterClosed: the router is not running.
        """
        self._running()
        assert self._node is not None, "a running router has a node"
        link = LocalLink(self._mailbox, client_id, **options)
        # If the node ends first, the router's actor cannot close the link, so the node does.
        end, node = WeakMethod(link.node_ended), self._node.name
        link.forget_end = self._node.context.shutdown.on(
            Phase.ENDED, lambda: (method := end()) and method(node)
        )
        return link

    def shadow(self, topic_filter: str) -> Message | None:
        """Return the last message of a filter with readers; None without a message.

        Raises:
            RouterClosed: the router is not running.
        """
        return self.call(last_message, self.machine, topic_filter)


def _outcome(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[bool, Any]:
    """Return the result of a function, or its exception for the caller to raise."""
    try:
        return True, function(*args)
    except BaseException as error:  # noqa: BLE001
        return False, error


def last_message(machine: RouterMachine, topic_filter: str) -> Message | None:
    """Return the last message of a filter's log, or else the last matching retained message.

    On the router's thread.
    """
    log = machine.logs.get(topic_filter)
    if log is not None and log.last is not None:
        return _message(log.last) if isinstance(log.last, MessageRun) else _passed(*log.last)
    retained = machine.logs.retained.match(topic_filter, machine.effects.now)
    return _message(max(retained, key=lambda run: run.number)) if retained else None


def _passed(packets: bytes, size: int, is_v5: bool) -> Message:  # noqa: FBT001
    """Return the last of some encoded packets."""
    publish = decode_packet(packets[-size:], V5 if is_v5 else V4)
    assert isinstance(publish, Publish)
    return Message(publish.topic, publish.payload, publish.qos, publish.retain)


def _message(run: MessageRun) -> Message:
    """Return the last message of a run."""
    return Message(run.topic.decode(), run.payloads[-1], run.qos, run.retain)


def _session_of(rule: Rule) -> str:
    """Return the client id of a rule with a destination."""
    assert rule.to is not None
    return session_id(RULE_PREFIX, rule.topic_filter, rule.to.label)


def tune_collector() -> None:
    """Tune the garbage collector for a process that only runs a router.

    A connection consists of about thirty objects without cycles, which exist as long as it.
    Python's default scans all of them again after every growth by 25 %, which would take a
    sixth of the time at a thousand connects per second.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, OLD, OLD)
