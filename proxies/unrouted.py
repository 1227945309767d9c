"""Messages and monitors without a path: wait while one is sought, dial, or refuse.

The first use of a ref whose text has an address dials it. What is told meanwhile waits in
the proxy, in order, and goes out in front of what is told later.
"""

from typing import TYPE_CHECKING, Any, Final

from actors.answers import Sender
from actors.errors import NodeUnreachable
from actors.future import Future
from basp.node_id import NodeId
from proxies.address import Endpoint, endpoint_text
from proxies.connector import Dial
from proxies.errors import LinkFull
from proxies.proxy import Proxy

if TYPE_CHECKING:
    from proxies.broker import Broker

DIAL_TIMEOUT: Final = 5.0
"""Seconds that the first use of a ref with an address waits for a link."""

DIAL_QUEUE: Final = 100_000
"""Messages to one actor that may wait for such a link or a path; more are refused with
`LinkFull`."""


class Unrouted:
    """What one node has to send and no path for."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._runner = broker.runtime.runner
        self._router = broker.router
        self._lock = broker.lock
        #: Proxies that wait for a dial that is under way.
        self.dialing: dict[Endpoint, dict[Proxy, None]] = {}

    def _endpoint_of(self, proxy: Proxy) -> Endpoint | None:
        return proxy.endpoint or self._broker.endpoints.get(proxy.node)

    def wait_or_refuse(
        self, proxy: Proxy, message: Any, sender: Sender | None, payload: bytes
    ) -> None:
        """Wait while a path is sought, dial where the ref's text says, or refuse.

        Raises:
            LinkFull: too many messages wait already.
        """
        endpoint = self._endpoint_of(proxy)
        with self._lock:
            is_active = proxy.node in self._router.active
            may_wait = endpoint is not None or proxy.node in self._router.next_hops
            if may_wait or is_active:
                if proxy.waiting is None:
                    proxy.waiting = []
                elif len(proxy.waiting) >= DIAL_QUEUE:
                    msg = f"{DIAL_QUEUE:,} messages wait for a path to node {proxy.node.hex()}"
                    raise LinkFull(msg)
                proxy.waiting.append((message, sender, payload))
        if is_active:
            return  # it is sent or refused when the router knows, see `search_over`
        if not may_wait:
            proxy.refuse(message, sender, proxy.no_path())
        else:
            self._runner.post(self._dial_for, proxy, endpoint)

    def search_over(self, node: NodeId) -> None:
        """Send or refuse what waited for another path."""
        with self._lock:
            held = self._broker.outgoing.held.pop(node, ())
        for send in held:
            send()
        for proxy in self._broker.lifetimes.proxies_of(node):
            if proxy.waiting is not None:
                self._dial_for(proxy, self._endpoint_of(proxy))

    def watch(self, proxy: Proxy) -> None:
        """Dial for a monitor that was set, or tell it that no path leads to its node."""
        endpoint = self._endpoint_of(proxy)
        if proxy.node in self._router.next_hops or proxy.node in self._router.active:
            return
        if endpoint is None:
            proxy.out_of_reach("no path leads to its node")
        else:
            with self._lock:
                proxy.waiting = proxy.waiting or []
            self._dial_for(proxy, endpoint)

    def _dial_for(self, proxy: Proxy, endpoint: Endpoint | None) -> None:
        if proxy.node in self._router.next_hops:
            self._send_waiting(proxy)
            return
        if proxy.node in self._router.active:
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
            lambda done: self._runner.post(self._dial_done, endpoint, done)
        )
        self._runner.call_later(DIAL_TIMEOUT, waiter.set_exception, TimeoutError("timed out"))
        self._broker.connector.dial(endpoint, waiter, secret=self._broker.secret, keep=False)

    def _dial_done(self, endpoint: Endpoint, waiter: Future[Dial]) -> None:
        error = waiter.exception()
        for proxy in self.dialing.pop(endpoint, {}):
            if proxy.node in self._router.next_hops:
                self._send_waiting(proxy)
                continue
            if proxy.node in self._router.active:
                continue
            text = f"another node listens at {endpoint_text(endpoint)}"
            text = text if error is None else str(error) or text
            self.refuse_waiting(proxy, text)
            proxy.out_of_reach(text)

    def _send_waiting(self, proxy: Proxy) -> None:
        """Send what waited for a link; whoever tells meanwhile queues up behind it."""
        while True:
            with self._lock:
                waiting = proxy.waiting
                if not waiting:
                    proxy.waiting = None
                    return
                proxy.waiting = []
            for message, sender, payload in waiting:
                self._broker.outgoing.dispatch(proxy, message, sender, payload)

    def refuse_waiting(self, proxy: Proxy, text: str) -> None:
        """Fail what waited for a path that does not come."""
        with self._lock:
            waiting, proxy.waiting = proxy.waiting, None
        for message, sender, _ in waiting or ():
            proxy.refuse(message, sender, NodeUnreachable(text))
