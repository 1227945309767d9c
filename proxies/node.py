"""A node: local actors, links to other nodes, and everything a user calls to work with both."""

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Self, TypeVar

from actors.actor import Actor
from actors.errors import InvalidAddress, NodeClosed, ResultTimeout, WouldBlock
from actors.future import Future
from actors.reference import ActorRef
from actors.runtime import Runtime
from actors.signals import Down
from actors.thespian import PlainActors
from basp.header import DIRECTORY, INSPECTOR, SPAWN_SERVER
from proxies.address import endpoint_text, parse_address, parse_node_address
from proxies.broker import Broker
from proxies.draining import DRAIN_TIMEOUT, Drain, Drained
from proxies.events import NodeDown
from proxies.figures import Figures
from proxies.inspection import Inspector
from proxies.limits import Limits
from proxies.names import Names
from proxies.naming import Naming
from proxies.overlay import Overlay
from proxies.ports import Ports, secret_bytes
from proxies.proxy import Proxy
from proxies.reach import CONNECT_TIMEOUT, Reach
from proxies.search import Search
from proxies.spawning import Spawning
from proxies.surroundings import Surroundings, real_surroundings
from proxies.system_actors import Directory, SpawnServer
from proxies.tls import Tls, dialing_context

A = TypeVar("A", bound=Actor)


class Node(Naming, Spawning, Figures):
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
            TypeError: `join` is one text.
            ValueError: the secret is empty.
        """
        if isinstance(join, str):
            msg = f"join takes a list of addresses: join=[{join!r}]"
            raise TypeError(msg)
        seeds = [parse_node_address(address) for address in join]
        proof = None if secret is None else secret_bytes(secret)
        context = None if tls is None else dialing_context(tls)
        around = surroundings or real_surroundings()
        node_id = around.make_node_id()
        name = name or f"node-{node_id.hex()[:6]}"
        self.runtime = Runtime(name, node_id, around.make_runner(name))
        super().__init__(self.runtime.runner, name)
        self.runtime.node = self
        self.runtime.plain = PlainActors({})
        self.runtime.spawn_elsewhere = self._spawn_elsewhere
        self._broker = Broker(self.runtime, around.network, node_id, name)
        self._broker.secret = proof
        self._tls = tls
        connector = self._broker.connector
        connector.tls = context
        connector.limits = limits or Limits()
        connector.emit = self.runtime.emit
        self._names, self._groups = Names(), Names()
        self._members = {}
        self._pools = []
        #: Links and paths, for rooms that build on nodes.
        self.overlay = Overlay(self._broker)
        self._ports = Ports(self._runner, around.network, self._broker)
        self._search = Search(self.runtime, self._broker, self._names)
        self._reach = Reach(self.runtime, self._broker, self._ports, self._search)
        self._drain = Drain(
            self.runtime, self._broker, (self._names, self._groups), self._pools
        )
        self._offered = dict(spawnable or {})
        self.runtime.spawn(SpawnServer, (self._offered,), number=SPAWN_SERVER)
        self.runtime.spawn(Directory, (self._names, self._groups, self.name), number=DIRECTORY)
        self.runtime.spawn(
            Inspector, (self.runtime, self._broker, self._names, self._drain), number=INSPECTOR
        )
        for endpoint in seeds:
            self._reach.dial(endpoint, keep=True).cancel()

    # --- who and where ---

    @property
    def node_id(self) -> bytes:
        """The 18 bytes that name this node: a 120-bit hash and the process id."""
        return self.runtime.node_id

    @property
    def address(self) -> str:
        """Where this node listens, as `basp://HOST:PORT`; `+ "/NAME"` names an actor.

        A Unix socket's is `basp+unix:/PATH:`; a port, if there is one as well, goes before it.

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
            address: local address; a public one needs `tls`, a secret, or `insecure=True`.
                `unix:/PATH` is a Unix socket, which its owner alone can use.
            port: TCP port; none for a Unix socket.
            publish: the actor that `remote_actor("basp://HOST:PORT")` returns.
            tls: encrypts the links of this port; default is the node's. Unix sockets have none.
            secret: shared secret that every peer has to prove; default is the node's.
            insecure: allow a public address that nothing guards.

        Raises:
            PublicAddress: anybody could reach the port.
            TlsError: a file of `tls` is missing or of no use.
            ValueError: there is no such port.
            OSError: the address is not ours or the port is taken.
        """
        self._refuse_closed()
        proof = self._broker.secret if secret is None else secret_bytes(secret)
        chosen = self._tls if tls is None else tls
        return self._ports.open(
            address, port, published=publish, secret=proof, tls=chosen, insecure=insecure
        )

    def connect(self, address: str, timeout: float = CONNECT_TIMEOUT) -> bytes:
        """Link with the node at an address and stay linked; returns its id.

        When the link is lost it is made again, by this side, until the node is closed.

        Raises:
            NodeUnreachable: no node answers there (this call gives up, and dials no more).
        """
        return self._wait(self.aconnect(address, timeout))

    async def aconnect(self, address: str, timeout: float = CONNECT_TIMEOUT) -> bytes:
        """Awaitable twin of `connect`."""
        self._refuse_closed()
        dial = await self._reach.linked(parse_node_address(address), timeout, keep=True)
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
        self._refuse_closed()
        if parse_address(address).number is not None:
            return self.ref(address)
        return await self._reach.actor_at(address, timeout)

    def monitor_node(self, node_id: bytes) -> Future[NodeDown]:
        """Return a future that is done when no path leads to a node any more."""
        future: Future[NodeDown] = Future()
        self._runner.post(self._broker.monitor_node, node_id, future)
        return future

    def adopt(self, sock: socket.socket, *, dialer: bool) -> None:
        """Link over a connection that is there already, such as one end of a socket pair.

        Args:
            sock: a connected stream socket; it belongs to the node from now on.
            dialer: True on exactly one of its two ends.
        """
        self._refuse_closed()
        self._runner.post(partial(self._broker.connector.adopt, sock, dialer=dialer))

    def disconnect(self, node_id: bytes, seconds: float = 3.0) -> None:
        """Cut the link with a neighbour and refuse it for some seconds, to see what happens."""
        self._runner.post(self._broker.connector.bar, node_id, seconds)

    # --- the end ---

    @property
    def is_draining(self) -> bool:
        """True from the beginning of a drain on."""
        return self._names.are_withdrawn

    def drain(self, timeout: float = DRAIN_TIMEOUT) -> Drained:
        """Finish what is under way, take nothing new, then close; returns what was left.

        Names are withdrawn and spawns refused at once; asks under way get their answers and
        mailboxes are emptied, at last those of its workers. The report is told as an event too.

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
        for pool in self._pools:
            pool.begin_close()
        self.runtime.end_actors()
        done: Future[None] = Future()
        self._runner.post(self._shut, done)
        with contextlib.suppress(ResultTimeout):  # a handler holds the node up: stop anyway
            done.result(CONNECT_TIMEOUT)
        self.runtime.close()
        for pool in self._pools:
            pool.join()
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
