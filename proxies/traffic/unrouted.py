"""Messages and monitors without a path, which wait for a path or a dial, or are refused.

The first use of a ref whose text has an address dials that address. Messages sent until the
dial ends wait in the proxy, in order. Messages that wait for credit
(`callboard.proxies.traffic.credit_window`) are in the same queue.
"""

from collections.abc import Callable
from typing import Final

from callboard.actors.errors import NodeClosed, NodeUnreachable
from callboard.actors.future import Future
from callboard.actors.reference import Sender
from callboard.actors.runtime import Runtime
from callboard.actors.values import Message
from callboard.basp.node_id import NodeId
from callboard.proxies.address import Endpoint, endpoint_text
from callboard.proxies.errors import LinkFull
from callboard.proxies.lifetime.proxy import Proxy, Queue
from callboard.proxies.link.dialer import Dial, Dialer
from callboard.proxies.link.stream import WAITING_LIMIT
from callboard.proxies.route_table import RouteTable

#: Seconds that the first use of a ref with an address waits for a link.
DIAL_TIMEOUT: Final = 5.0

#: Messages to one actor that may wait for such a link or a path; more are refused with
#: `LinkFull`.
DIAL_QUEUE: Final = 100_000

#: Waiting messages that are sent in one turn.
SENT_A_TURN: Final = 1_000

#: Answers and forwarded messages that may wait for a path to one node.
HELD_LIMIT: Final = 100_000


class Unrouted:
    """The messages of one node that wait for a path."""

    def __init__(self, runtime: Runtime, routes: RouteTable, dialer: Dialer) -> None:
        self._runtime = runtime
        self._routes = routes
        self._router = routes.router
        self._lock = routes.lock
        self._dialer = dialer
        #: The reason for refusing messages, once the node is closed.
        self._closed = ""
        #: Proxies that wait for a dial in progress, by its address.
        self.dialing: dict[Endpoint, dict[Proxy, None]] = {}
        #: Proxies with waiting messages or monitors, by node.
        self._waiting: dict[bytes, dict[Proxy, None]] = {}
        #: Callbacks that send frames once a path is found, by node, while the router seeks one.
        self.held: dict[bytes, list[Callable[[], None]]] = {}
        #: Called with a proxy whose messages wait for credit.
        self.on_short: Callable[[Proxy], object] = lambda _: None

    def _endpoint_of(self, proxy: Proxy) -> Endpoint | None:
        """Return the address of a proxy's node, None if it is unknown."""
        return proxy.endpoint or self._routes.endpoints.get(proxy.node)

    @property
    def message_count(self) -> int:
        """Number of messages that wait for a path."""
        with self._lock:
            proxies = [proxy for waiting in self._waiting.values() for proxy in waiting]
        return sum(len(proxy.waiting or ()) for proxy in proxies)

    def waiting_by_node(self) -> dict[bytes, int]:
        """Return the number of messages that wait for a path or for credit, by node."""
        with self._lock:
            counts = {
                node: sum(proxy.waiting.message_count for proxy in waiting if proxy.waiting)
                for node, waiting in self._waiting.items()
            }
        return {node: count for node, count in counts.items() if count}

    def hold(self, node: bytes, send: Callable[[], None]) -> bool:
        """Keep a callback until a path is found or the node is lost.

        The caller must hold the lock.
        """
        sends = self.held.setdefault(node, []) if node in self._router.active else None
        if sends is None or len(sends) >= HELD_LIMIT:
            return False
        sends.append(send)
        return True

    def wait_or_refuse(
        self, proxy: Proxy, message: Message, sender: Sender | None, payload: bytes
    ) -> None:
        """Queue a message while a path is sought or its node is dialed, or refuse it.

        Raises:
            LinkFull: too many messages wait already.
        """
        if self._closed:
            proxy.refuse(message, sender, NodeClosed(self._closed))
            return
        endpoint = self._endpoint_of(proxy)
        with self._lock:
            is_active = proxy.node in self._router.active
            may_wait = endpoint is not None or proxy.node in self._router.next_hops
            if may_wait or is_active:
                waiting = self.begin_to_wait(proxy)
                is_full = len(waiting) >= DIAL_QUEUE
                # A path exists, and the waiting messages are being sent.
                if proxy.node in self._router.next_hops:
                    is_full = waiting.weight > 2 * WAITING_LIMIT
                if is_full:
                    msg = f"{len(waiting):,} messages wait for a path to {proxy.node.hex()}"
                    raise LinkFull(msg)
                waiting.put(message, sender, payload)
        if is_active:
            return  # `search_over` will send or refuse the message
        if not may_wait:
            proxy.refuse(message, sender, proxy.no_path())
        else:
            self._runtime.post(self._dial_for, proxy, endpoint)

    def begin_to_wait(self, proxy: Proxy) -> Queue:
        """Return the queue of a proxy, created on first use. The caller must hold the lock."""
        if proxy.waiting is None:
            proxy.waiting = Queue()
            self._waiting.setdefault(proxy.node, {})[proxy] = None
        return proxy.waiting

    def end_wait(self, proxy: Proxy) -> Queue:
        """Remove and return the queue of a proxy. The caller must hold the lock.

        Afterwards, the caller releases the `pressure` of the queue without the lock.
        """
        waiting, proxy.waiting = proxy.waiting, None
        proxies = self._waiting.get(proxy.node, {})
        proxies.pop(proxy, None)
        if not proxies:
            self._waiting.pop(proxy.node, None)
        return Queue() if waiting is None else waiting

    def enqueue_after_pending(self, proxy: Proxy, command: object) -> bool:
        """Queue a command after the waiting messages of a proxy; return False if none wait."""
        with self._lock:
            if proxy.waiting is not None:
                proxy.waiting.put(command, None, b"")
            return proxy.waiting is not None

    def search_over(self, node: NodeId) -> None:
        """Send or refuse the messages that waited while a path to a node was sought."""
        with self._lock:
            sends = self.held.pop(node, ())
            waiting = list(self._waiting.get(node, ()))
        for send in sends:
            send()
        for proxy in waiting:
            if proxy.waiting is not None:
                self.dial_or_refuse(proxy)

    def dial_or_refuse(self, proxy: Proxy) -> None:
        """Dial the lost node of a proxy for its waiting messages, or refuse them."""
        self._dial_for(proxy, self._endpoint_of(proxy))

    def ensure_watched(self, proxy: Proxy) -> None:
        """Ensure that a monitor is served: the host knows the proxy, or no path leads there."""
        if proxy.node not in self._router.next_hops:
            self._runtime.post(self._watch, proxy)

    def _watch(self, proxy: Proxy) -> None:
        """Dial for a new monitor, or report to it that no path leads to its node."""
        endpoint = self._endpoint_of(proxy)
        if self._routes.has_path(proxy.node):
            return
        if endpoint is None:
            proxy.report_unreachable("no path leads to its node")
        else:
            with self._lock:
                self.begin_to_wait(proxy)
            self._dial_for(proxy, endpoint)

    def _is_sent_or_sought(self, proxy: Proxy) -> bool:
        """Send the waiting messages of a proxy; return whether a path exists or is sought."""
        if proxy.node in self._router.next_hops:
            self.send_waiting(proxy)
            return True
        return proxy.node in self._router.active

    def _dial_for(self, proxy: Proxy, endpoint: Endpoint | None) -> None:
        """Send the waiting messages of a proxy, dial its node, or refuse them."""
        if self._is_sent_or_sought(proxy):
            return
        if endpoint is None:
            self.refuse_waiting(proxy, str(proxy.no_path()))
            return
        proxies = self.dialing.get(endpoint)
        if proxies is not None:
            proxies[proxy] = None
            return
        self.dialing[endpoint] = {proxy: None}
        waiter: Future[Dial] = Future()
        waiter.add_done_callback(
            lambda done: self._runtime.post(self._dial_done, endpoint, done)
        )
        self._runtime.call_later(DIAL_TIMEOUT, waiter.set_exception, TimeoutError("timed out"))
        self._dialer.dial(endpoint, waiter, keep=False)

    def _dial_done(self, endpoint: Endpoint, waiter: Future[Dial]) -> None:
        """Send or refuse the messages that waited for a dial."""
        error = waiter.exception()
        for proxy in self.dialing.pop(endpoint, {}):
            if self._is_sent_or_sought(proxy):
                continue
            text = f"another node listens at {endpoint_text(endpoint)}"
            text = text if error is None else str(error) or text
            self.refuse_waiting(proxy, text)
            proxy.report_unreachable(text)

    def send_waiting(self, proxy: Proxy) -> None:
        """Send waiting messages as credit allows, a portion in each turn.

        Messages that are sent while these still wait are queued after them.
        """
        for _ in range(SENT_A_TURN):
            with self._lock:
                waiting, credit = proxy.waiting, proxy.credit
                if not waiting:
                    waiting = self.end_wait(proxy)
                    break
                payload = waiting[0][2]
                if proxy.node not in self._router.next_hops or (
                    credit is not None and payload and not credit.take(len(payload))
                ):
                    break
                entry = waiting.take()
            sender = entry[1]
            if sender is None or not sender.expects or not sender.is_done:
                proxy.post_waited(*entry)
        else:
            self._runtime.post(self.send_waiting, proxy)
            return
        if waiting:
            waiting.pressure.make_room(len(waiting))
            self.on_short(proxy)
        else:
            waiting.pressure.release()

    def refuse_waiting(self, proxy: Proxy, text: str) -> None:
        """Fail the messages that waited for a path."""
        with self._lock:
            waiting = self.end_wait(proxy)
        for message, sender, _ in waiting:
            proxy.refuse(message, sender, NodeUnreachable(text))
        waiting.pressure.release()

    def close(self, text: str) -> None:
        """Fail all messages that wait for a path, and refuse later ones."""
        self._closed = f"{text}; create another node"
        with self._lock:
            proxies = [proxy for waiting in self._waiting.values() for proxy in waiting]
        for proxy in proxies:
            self.refuse_waiting(proxy, text)
