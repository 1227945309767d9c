"""A node: local actors, links to other nodes, and everything a user calls to work with both."""

import asyncio
import contextlib
import ipaddress
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Self, TypeVar

from actors.actor import Actor
from actors.child import Child
from actors.current import current_cell
from actors.errors import (
    InvalidAddress,
    NodeClosed,
    NodeUnreachable,
    NotRegistered,
    ResultTimeout,
    WouldBlock,
    WouldDeadlock,
)
from actors.future import Future
from actors.options import options_of
from actors.reference import ActorRef
from actors.runtime import Runtime
from actors.signals import Down
from actors.supervision import BACKOFF
from actors.supervisor import Supervisor
from actors.system import PlainActors
from basp.accounting import Account
from basp.header import DIRECTORY, FIRST_ACTOR, SPAWN_SERVER
from proxies.address import Endpoint, endpoint_text, parse_address, parse_node_address
from proxies.broker import Broker
from proxies.connector import Dial
from proxies.draining import DRAIN_TIMEOUT, Drain, Drained
from proxies.errors import LinkError, PublicAddress
from proxies.events import NodeDown
from proxies.limits import Limits
from proxies.messages import Lookup, Spawn
from proxies.names import Names
from proxies.proxy import Proxy
from proxies.stats import AccountInfo, LinkInfo, NodeStats, Passage, ReachableNode
from proxies.surroundings import Surroundings, real_surroundings
from proxies.system_actors import Directory, SpawnServer
from proxies.tls import Tls, dialing_context, listening_context

A = TypeVar("A", bound=Actor)
T = TypeVar("T")

CONNECT_TIMEOUT = 5.0
"""Seconds that `connect`, `remote_actor` and `remote_spawn` wait for a link by default."""


class Node:
    """A container for actors that can be linked to others.

    It runs in the background from the moment it is made; no port is open until `listen`. Use
    it as a context manager, or call `close`. All methods may be called from any thread.
    Blocking methods have an awaitable twin with an `a` in front.
    """

    def __init__(
        self,
        name: str = "",
        *,
        spawnable: Mapping[str, type[Actor]] | None = None,
        join: Sequence[str] = (),
        secret: str | bytes | None = None,
        tls: Tls | ssl.SSLContext | None = None,
        limits: Limits | None = None,
        surroundings: Surroundings | None = None,
    ) -> None:
        """Make a node.

        Args:
            name: for people: logs, displays, errors.
            spawnable: the classes that other nodes may spawn here, by name.
            join: addresses to be linked with; tried again until they answer, and when lost.
            secret: shared secret of the cluster, proved on every link before anything else.
            tls: encrypts the links that this node makes, and those of its ports unless
                `listen` says otherwise; peers have to use TLS as well.
            limits: what the node takes from others.
            surroundings: what the node stands on; simulations pass their own.

        Raises:
            InvalidAddress: an address in `join` has another form than `basp://HOST:PORT`.
            TlsError: a file of `tls` is missing or of no use.
            ValueError: the secret is empty.
        """
        seeds = [parse_node_address(address) for address in join]
        proof = None if secret is None else _secret_bytes(secret)
        context = None if tls is None else dialing_context(tls)
        around = surroundings or real_surroundings()
        node_id = around.make_node_id()
        self.name = name or f"node-{node_id.hex()[:6]}"
        self._network = around.network
        self.runtime = Runtime(self.name, node_id, around.make_runner(self.name))
        self.runtime.node = self
        self.runtime.plain = PlainActors({})
        self.runtime.spawn_elsewhere = self._spawn_elsewhere
        self._runner = self.runtime.runner
        self._broker = Broker(self.runtime, around.network, node_id, self.name)
        self._broker.secret = proof
        self._tls = tls
        connector = self._broker.connector
        connector.tls = context
        connector.limits = limits or Limits()
        connector.emit = self.runtime.emit
        self._names = Names()
        self._drain = Drain(self.runtime, self._broker, self._names)
        self._closed = False
        #: What `_start` began and nobody has finished.
        self._started: set[Future[Any]] = set()
        self.runtime.spawn(SpawnServer, (dict(spawnable or {}),), number=SPAWN_SERVER)
        self.runtime.spawn(Directory, (self._names, self.name), number=DIRECTORY)
        for endpoint in seeds:
            self._dial(endpoint, keep=True).cancel()

    # --- who and where ---

    @property
    def node_id(self) -> bytes:
        """The 18 bytes that name this node: a 120-bit hash and the process id."""
        return self.runtime.node_id

    @property
    def address(self) -> str:
        """Where this node listens, as `basp://HOST:PORT`.

        Raises:
            InvalidAddress: it does not listen.
        """
        if self._broker.endpoint is None:
            msg = f"{self.name} does not listen; call node.listen(address, port) first"
            raise InvalidAddress(msg)
        return endpoint_text(self._broker.endpoint)

    def __repr__(self) -> str:
        return f"<Node {self.name} {self.node_id.hex()}>"

    # --- actors ---

    def spawn(
        self, actor_class: type[A], *args: Any, on: str | bytes | None = None, **kwargs: Any
    ) -> ActorRef[A]:
        """Spawn an actor here, or on another node that offers its class.

        Args:
            actor_class: a subclass of `Actor`, or of Thespian's.
            args: for its `__init__`.
            on: address or id of the node to spawn on, which has to offer the class.
            kwargs: for its `__init__`.

        Raises:
            NotSpawnable: the other node does not offer the class.
            NodeUnreachable: no node answers there.
            RemoteError: the actor's `__init__` raised there.
        """
        if on is not None:
            return self._wait(self.aspawn(actor_class, *args, on=on, **kwargs))
        return self.runtime.spawn(actor_class, args, kwargs)

    async def aspawn(
        self, actor_class: type[A], *args: Any, on: str | bytes | None = None, **kwargs: Any
    ) -> ActorRef[A]:
        """Awaitable twin of `spawn`."""
        if on is None:
            return self.runtime.spawn(actor_class, args, kwargs)
        node = await self._reach(on)
        found, _ = options_of(actor_class)
        request = Spawn(found.__qualname__, args, kwargs or None, by_class=True)
        return await self._spawn_on(node, request)

    def remote_spawn(
        self, on: str | bytes, name: str, *args: Any, **kwargs: Any
    ) -> ActorRef[Any]:
        """Spawn an actor on another node, by the name under which that node offers its class.

        Args:
            on: address (`basp://HOST:PORT`) or id of the node.
            name: one of the keys of that node's `spawnable`.
            args: for the actor's `__init__`; they travel as a message does.
            kwargs: for the actor's `__init__`.

        Raises:
            NotSpawnable: the node offers no class of that name.
            NodeUnreachable: no node answers there.
            RemoteError: the actor's `__init__` raised.
        """
        return self._wait(self.aremote_spawn(on, name, *args, **kwargs))

    async def aremote_spawn(
        self, on: str | bytes, name: str, *args: Any, **kwargs: Any
    ) -> ActorRef[Any]:
        """Awaitable twin of `remote_spawn`."""
        return await self._spawn_on(await self._reach(on), Spawn(name, args, kwargs or None))

    async def _spawn_on(self, node: bytes, request: Spawn) -> ActorRef[Any]:
        server = self.runtime.ref_to(node, SPAWN_SERVER)
        return await server.ask(request)  # type: ignore[no-any-return]

    def supervise(
        self,
        children: Sequence[Child],
        *,
        strategy: str = "one_for_one",
        intensity: tuple[int, float] = (3, 5.0),
        backoff: tuple[float, float] = BACKOFF,
    ) -> ActorRef[Supervisor]:
        """Start children under a supervisor, which starts them again when they end.

        Args:
            children: what to start, in this order.
            strategy: who is started again when a child ends: `one_for_one` only that child,
                `one_for_all` all, `rest_for_one` that child and those started after it.
            intensity: more than this many restarts within this many seconds end the supervisor.
            backoff: seconds of the shortest and the longest pause before a restart that soon
                follows another one of the same child.

        Raises:
            ValueError: the strategy is not known, or a number is negative.
            Exception: whatever the `__init__` of a child raised.
        """
        return self.runtime.spawn(Supervisor, (list(children), strategy, intensity, backoff))

    def _spawn_elsewhere(
        self, actor_class: type[A], args: tuple[Any, ...], kwargs: dict[str, Any], on: Any
    ) -> Future[ActorRef[A]]:
        return self._start(self.aspawn(actor_class, *args, on=on, **kwargs))

    def ref(self, text: str) -> ActorRef[Any]:
        """Return the ref that a text stands for. Never blocks or dials.

        Raises:
            InvalidAddress: the text is no `basp://HOST:PORT/ID@NODE` or `basp:///ID@NODE`.
        """
        address = parse_address(text)
        if address.number is None or address.node is None:
            msg = (
                f"{text!r} is no actor's address; use remote_actor() for basp://HOST:PORT/NAME"
            )
            raise InvalidAddress(msg)
        ref = self.runtime.ref_to(address.node, address.number)
        if isinstance(ref.target, Proxy) and address.endpoint is not None:
            ref.target.endpoint = address.endpoint
        return ref

    def monitor(self, ref: ActorRef[Any]) -> Future[Down]:
        """Return a future that is done when the actor ends, is lost, or has ended already."""
        return self.runtime.monitor(ref)

    # --- names ---

    def register(self, name: str, ref: ActorRef[Any]) -> None:
        """Let other nodes find an actor under a name, until it ends or `unregister`.

        Raises:
            InvalidAddress: the name could not stand in an address.
        """
        self._names.register(name, ref)

    def unregister(self, name: str) -> bool:
        """Take a name back; False when nobody had it."""
        return self._names.withdraw(name)

    def find(self, name: str, timeout: float = CONNECT_TIMEOUT) -> Future[ActorRef[Any]]:
        """Look a name up on this node and on all that are in reach.

        The future fails with `NotRegistered` when nobody has the name.
        """
        return self._start(self._find(name, timeout))

    def find_all(
        self, name: str, timeout: float = CONNECT_TIMEOUT
    ) -> Future[list[ActorRef[Any]]]:
        """Return all actors of that name in reach, this node's first."""
        return self._start(self._find_all(name, timeout))

    async def _find(self, name: str, timeout: float) -> ActorRef[Any]:
        held = self._names.get(name)
        if held is not None:
            return held
        # The first answer counts: a node that is frozen must not hold the others up.
        for answer in asyncio.as_completed(self._look_everywhere(name, timeout)):
            found = await answer
            if isinstance(found, ActorRef):
                return found
        msg = f"no actor in reach of {self.name} is registered as {name!r}"
        raise NotRegistered(msg)

    async def _find_all(self, name: str, timeout: float) -> list[ActorRef[Any]]:
        held = self._names.get(name)
        found = [] if held is None else [held]
        for answer in await asyncio.gather(*self._look_everywhere(name, timeout)):
            if isinstance(answer, ActorRef) and answer not in found:
                found.append(answer)
        return found

    def _look_everywhere(self, name: str, timeout: float) -> list[Coroutine[Any, Any, Any]]:
        """Ask the directories of all nodes in reach."""
        return [
            _settled(self.runtime.ref_to(node, DIRECTORY).ask(Lookup(name), timeout))
            for node in sorted(self._broker.router.reachable)
        ]

    # --- other nodes ---

    def listen(
        self,
        address: str = "127.0.0.1",
        port: int = 0,
        *,
        publish: ActorRef[Any] | None = None,
        tls: Tls | ssl.SSLContext | None = None,
        secret: str | bytes | None = None,
        insecure: bool = False,
    ) -> int:
        """Accept links on a port; returns the port (0 picks a free one).

        Args:
            address: local address; a public one needs a secret, TLS with certificates of
                both sides, or `insecure=True`.
            port: TCP port.
            publish: the actor that `remote_actor("basp://HOST:PORT")` returns.
            tls: encrypts the links of this port; default is the node's.
            secret: shared secret that every peer has to prove; default is the node's.
            insecure: allow a public address where nobody has to prove anything.

        Raises:
            PublicAddress: anybody could reach the port.
            TlsError: a file of `tls` is missing or of no use.
            OSError: the address is not ours or the port is taken.
        """
        self._refuse_closed()
        proof = self._broker.secret if secret is None else _secret_bytes(secret)
        chosen = self._tls if tls is None else tls
        context = None if chosen is None else listening_context(chosen)
        is_proven = proof is not None or (
            context is not None and context.verify_mode is ssl.CERT_REQUIRED
        )
        if not is_proven and not insecure and not _is_loopback(address):
            msg = (
                f"{address} can be reached from other machines; pass secret=… or mutual TLS, "
                "or insecure=True if whoever gets through may do everything"
            )
            raise PublicAddress(msg)
        config = replace(
            self._broker.listening_config(proof, publish),
            payload_limit=self._broker.connector.limits.payload,
        )
        sock = self._network.bind(address, port)
        endpoint: Endpoint = sock.getsockname()[:2]
        self._broker.endpoint = self._broker.endpoint or endpoint
        self._runner.post(self._broker.connector.listen, sock, config, context)
        return endpoint[1]

    def connect(self, address: str, timeout: float = CONNECT_TIMEOUT) -> bytes:
        """Link with the node at an address and stay linked; returns its id.

        When the link is lost it is made again, by this side, until the node is closed.

        Raises:
            NodeUnreachable: no node answers there (this call gives up, and dials no more).
        """
        return self._wait(self.aconnect(address, timeout))

    async def aconnect(self, address: str, timeout: float = CONNECT_TIMEOUT) -> bytes:
        """Awaitable twin of `connect`."""
        dial = await self._dialed(parse_node_address(address), timeout, keep=True)
        assert dial.peer is not None
        return dial.peer

    def remote_actor(self, address: str, timeout: float = CONNECT_TIMEOUT) -> ActorRef[Any]:
        """Return the ref of an actor of another node, by `basp://HOST:PORT/NAME`.

        Without a name it is the actor published at the port.

        Raises:
            NodeUnreachable: no node answers there.
            NotRegistered: nobody has that name there.
        """
        return self._wait(self.aremote_actor(address, timeout))

    async def aremote_actor(
        self, address: str, timeout: float = CONNECT_TIMEOUT
    ) -> ActorRef[Any]:
        """Awaitable twin of `remote_actor`."""
        parsed = parse_address(address)
        if parsed.number is not None:
            return self.ref(address)
        if parsed.endpoint is None:
            msg = f"{address!r} does not say where the actor is"
            raise InvalidAddress(msg)
        if parsed.endpoint == self._broker.endpoint and parsed.name is not None:
            return await self._find(parsed.name, timeout)
        dial = await self._dialed(parsed.endpoint, timeout, keep=False)
        assert dial.peer is not None
        if parsed.name is None:
            if dial.published is None:
                msg = f"no actor is published at {address}; add /NAME"
                raise NotRegistered(msg)
            return self.runtime.ref_to(dial.peer, dial.published[0])
        directory = self.runtime.ref_to(dial.peer, DIRECTORY)
        found = await directory.ask(Lookup(parsed.name), timeout)
        if found is None:
            msg = f"nobody is registered as {parsed.name!r} at {address}"
            raise NotRegistered(msg)
        return found  # type: ignore[no-any-return]

    async def _reach(self, on: str | bytes) -> bytes:
        if isinstance(on, bytes):
            return on
        endpoint = parse_node_address(on)
        if endpoint == self._broker.endpoint:
            return self.node_id
        dial = await self._dialed(endpoint, CONNECT_TIMEOUT, keep=False)
        assert dial.peer is not None
        return dial.peer

    def _dial(self, endpoint: Endpoint, *, keep: bool) -> Future[Dial]:
        waiter: Future[Dial] = Future()
        self._runner.post(self._start_dial, endpoint, waiter, keep)
        return waiter

    def _start_dial(self, endpoint: Endpoint, waiter: Future[Dial], keep: bool) -> None:  # noqa: FBT001
        self._broker.connector.dial(endpoint, waiter, secret=self._broker.secret, keep=keep)

    async def _dialed(self, endpoint: Endpoint, timeout: float, *, keep: bool) -> Dial:
        self._refuse_closed()
        waiter = self._dial(endpoint, keep=False)
        timer = self._runner.call_later(
            timeout,
            waiter.set_exception,
            NodeUnreachable(
                f"no node answered at {endpoint_text(endpoint)} within {timeout:g} s"
            ),
        )
        try:
            dial = await waiter
        finally:
            timer.cancel()
            self._runner.post(self._broker.connector.forget_waiter, endpoint, waiter)
        dial.keep = dial.keep or keep
        return dial

    def nodes(self) -> list[ReachableNode]:
        """List the nodes in reach, nearest first."""
        router, names = self._broker.router, self._broker.names
        found = [
            ReachableNode(node, names.get(node, ""), len(path), path[0])
            for node in router.reachable
            if (path := router.path(node))
        ]
        return sorted(found, key=lambda node: (node.hops, node.name, node.node_id))

    def links(self) -> list[LinkInfo]:
        """List the links to neighbours."""
        return [
            LinkInfo(
                peer,
                wire.peer_name,
                "" if wire.endpoint is None else endpoint_text(wire.endpoint),
                wire.frames_sent,
                wire.frames_received,
                wire.bytes_sent,
                wire.bytes_received,
                wire.waiting,
            )
            for peer, wire in list(self._broker.wires.items())
        ]

    def monitor_node(self, node_id: bytes) -> Future[NodeDown]:
        """Return a future that is done when no path leads to a node any more."""
        future: Future[NodeDown] = Future()
        self._runner.post(self._broker.monitor_node, node_id, future)
        return future

    def disconnect(self, node_id: bytes, seconds: float = 3.0) -> None:
        """Cut the link with a neighbour and refuse it for some seconds, to see what happens."""
        self._runner.post(self._broker.connector.bar, node_id, seconds)

    # --- seeing ---

    def accounts(self) -> dict[bytes, AccountInfo]:
        """Return what was sent to each other node, and what became of it."""
        accounts = list(self._broker.accounts.accounts.items())
        return {node: _account_info(account) for node, account in accounts}

    def report_now(self) -> None:
        """Tell the other nodes at once what arrived from them, instead of within the second."""
        self._runner.post(self._broker.report)

    def passages(self) -> list[Passage]:
        """Return the latest asks that this node forwarded for others, oldest first."""
        return list(self._broker.passages)

    def stats(self) -> NodeStats:
        """Return the node's counters."""
        runtime, broker = self.runtime, self._broker
        counters = runtime.counters
        return NodeStats(
            name=self.name,
            node_id=self.node_id,
            actors=sum(number >= FIRST_ACTOR for number in list(runtime.cells)),
            spawned=counters.spawned,
            handled=runtime.handled,
            dead_letters=counters.dead_letters,
            unexpected=counters.unexpected,
            failures=counters.failures,
            forwarded=broker.forwarded,
            undeliverable=broker.undeliverable,
            waiting_asks=broker.waiting_asks,
            proxies=broker.proxy_count,
            ends=dict(counters.ends),
            refused_connections=broker.connector.refused,
        )

    def subscribed(self, subscriber: Callable[[object], None]) -> AbstractContextManager[None]:
        """Call `subscriber(event)` for each event while the block runs; it has to be quick."""
        return self.runtime.subscribed(subscriber)

    async def events(self) -> AsyncIterator[object]:
        """Iterate over what happens: dead letters, downs, links, restarts, as dataclasses."""
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[object] = asyncio.Queue()

        def put(event: object) -> None:
            loop.call_soon_threadsafe(queue.put_nowait, event)

        with self.subscribed(put):
            while True:
                yield await queue.get()

    # --- the end ---

    @property
    def is_draining(self) -> bool:
        """True from the beginning of a drain on."""
        return self._names.are_withdrawn

    def drain(self, timeout: float = DRAIN_TIMEOUT) -> Drained:
        """Finish what is under way, take nothing new, then close; returns what was left.

        Names are withdrawn and spawns refused at once; asks under way get their answers and
        mailboxes are emptied. The report is told as an event too.

        Args:
            timeout: seconds after which the node is closed in any case.

        Raises:
            NodeClosed: it is closed already.
        """
        report = self._wait(self._drain.adrain(timeout))
        self.close()
        return report

    async def adrain(self, timeout: float = DRAIN_TIMEOUT) -> Drained:
        """Awaitable twin of `drain`."""
        self._refuse_closed()
        report = await self._drain.adrain(timeout)
        await self.aclose()
        return report

    def close(self) -> None:
        """End all actors, tell the neighbours, close all links and stop. Idempotent.

        In a handler of this node it returns at once; the node ends when the handler has.

        Raises:
            WouldBlock: called on the thread of a running event loop; nothing was closed.
        """
        if self._closed:
            return
        if self._runner.is_runner_thread():
            threading.Thread(target=self.close, name="callboard-close", daemon=True).start()
            return
        if asyncio._get_running_loop() is not None:  # noqa: SLF001
            msg = "close() would block the event loop; await node.aclose() instead"
            raise WouldBlock(msg)
        self._closed = True
        self.runtime.end_actors()
        done: Future[None] = Future()
        self._runner.post(self._shut, done)
        with contextlib.suppress(ResultTimeout):  # a handler holds the node up: stop anyway
            done.result(CONNECT_TIMEOUT)
        self.runtime.close()
        for future in list(self._started):
            future.set_exception(NodeClosed(f"{self.name} was closed"))

    def _shut(self, done: Future[None]) -> None:
        try:
            self._broker.close()
        finally:
            done.set_result(None)

    async def aclose(self) -> None:
        """Awaitable twin of `close`."""
        await asyncio.get_running_loop().run_in_executor(None, self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # --- blocking calls and their twins ---

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a twin to its end for a thread that may block; twins have limits of their own."""
        twin = getattr(coroutine, "__name__", "")
        cell = current_cell.get()
        if cell is not None and self._runner.is_runner_thread():
            coroutine.close()
            msg = f"this call would hold up {cell.ref}; await node.{twin}(…) instead"
            raise WouldDeadlock(msg)
        if asyncio._get_running_loop() is not None:  # noqa: SLF001
            coroutine.close()
            msg = f"this call would block the event loop; await node.{twin}(…) instead"
            raise WouldBlock(msg)
        return self._start(coroutine).result()

    def _start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the runner's loop; its outcome comes as a future of ours."""
        future: Future[T] = Future()

        async def run() -> None:
            try:
                future.set_result(await coroutine)
            except BaseException as error:
                future.set_exception(error)
                if not isinstance(error, Exception):
                    raise
            finally:
                self._started.discard(future)

        self._started.add(future)
        if self._closed:
            coroutine.close()
            self._started.discard(future)
            self._refuse_closed()
        loop = self._runner.loop
        loop.call_soon_threadsafe(_keep_task, loop, run())
        return future

    def _refuse_closed(self) -> None:
        if self._closed:
            msg = f"{self.name} is closed; make another node"
            raise NodeClosed(msg)


_TASKS: set[asyncio.Task[Any]] = set()  # asyncio itself keeps only weak references


def _keep_task(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, None]) -> None:
    task = loop.create_task(coroutine)
    _TASKS.add(task)
    task.add_done_callback(_TASKS.discard)


async def _settled(future: Future[T]) -> T | None:
    """Await a future whose failure only means that there is no answer from there."""
    try:
        return await future
    except (NodeUnreachable, TimeoutError, LinkError):
        return None


def _account_info(account: Account) -> AccountInfo:
    # What was sent is read last: other threads send meanwhile, and nothing is in flight twice.
    confirmed, dead_letters, lost = account.confirmed, account.dead_letters, account.lost
    sent = account.sent
    return AccountInfo(sent, confirmed, dead_letters, lost, sent - confirmed - lost)


def _secret_bytes(secret: str | bytes) -> bytes:
    if not secret:
        msg = "secret must not be empty; leave it out for no authentication"
        raise ValueError(msg)
    return secret.encode() if isinstance(secret, str) else secret


def _is_loopback(address: str) -> bool:
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
