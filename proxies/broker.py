"""The BASP broker: the parts of one node's side of the protocol.

- `unrouted`: messages that wait for a path or for a dial
- `outgoing`: sends the messages of proxies, and answers, to wires
- `credit_window`, `credit_issuer`: credit for actors with bounded mailboxes, at both ends
- `lifetimes`: announce, release and down, which keep the proxies of all nodes correct
- `paths`: links, routes, and the effects of their changes
- `authorizer`: links of peers with limited rights
- `unverified`: frames received on a link that is not on a path from their source
- `forwarding`: frames for other nodes
- `incoming`: the frames of one read

Proxies and `outgoing` may be used from any thread. Everything else runs on the thread that has
the runner's role, so only one thread at a time changes routes, proxies and accounts.
"""

from collections.abc import Callable
from typing import Final

from callboard.actors.errors import NodeUnreachable
from callboard.actors.runner.runner import Runner
from callboard.actors.runtime import Runtime
from callboard.basp.frame import RawFrame, pack_frame
from callboard.basp.header import Operation
from callboard.proxies.environment import NodeEnvironment
from callboard.proxies.lifetime.lifetimes import Lifetimes
from callboard.proxies.link.connector import Connector, LinkOptions
from callboard.proxies.link.foreign import ForeignWires
from callboard.proxies.link.wire import CLOSING, Wire
from callboard.proxies.route_table import RouteTable
from callboard.proxies.traffic.authorizer import PeerAuthorizer
from callboard.proxies.traffic.credit_issuer import CreditIssuer
from callboard.proxies.traffic.credit_window import CreditSender
from callboard.proxies.traffic.forwarding import Forwarding
from callboard.proxies.traffic.incoming import Incoming
from callboard.proxies.traffic.outgoing import Outgoing
from callboard.proxies.traffic.paths import Paths
from callboard.proxies.traffic.unrouted import Unrouted
from callboard.proxies.traffic.unverified import UnverifiedFrames

#: Seconds between delivery reports while messages arrive.
REPORT_INTERVAL: Final = 0.1
#: Seconds between two passes of housekeeping, and between reports without messages.
UPKEEP_SECONDS: Final = 1.0


class Broker:
    """The node's side of BASP."""

    def __init__(
        self,
        runtime: Runtime,
        runner: Runner,
        environment: NodeEnvironment,
        options: LinkOptions,
    ) -> None:
        limits = options.limits
        self.runtime = runtime
        self.routes = routes = RouteTable(options.node_id)
        self.connector = Connector(runner, environment.network, options, runtime.report)
        #: Ports, dials and links of foreign wires.
        self.foreign = ForeignWires(self.connector, environment.network, runtime.report)
        self.unrouted = Unrouted(runtime, routes, self.connector.dialer)
        self.outgoing = Outgoing(
            runtime,
            routes,
            self.unrouted,
            environment.registry,
            *(limits.payload, limits.items),
        )
        self.credit_window = CreditSender(runtime, routes, self.outgoing, self.unrouted)
        self.lifetimes = Lifetimes(runtime, routes, self.credit_window, limits.proxies)
        self.credit_issuer = CreditIssuer(runtime, routes, self.lifetimes.holders)
        self.credit_window.lifetimes, self.lifetimes.lender = self.lifetimes, self.credit_issuer
        self.unverified = UnverifiedFrames(runtime, routes, self.outgoing)
        self.authorizer = PeerAuthorizer(runtime, routes, self.outgoing.codec)
        self.authorizer.lend = self._grant_credit
        self.outgoing.on_answered = self._report_no_bounds
        self.paths = Paths(
            runtime,
            routes,
            self.outgoing,
            self.unrouted,
            self.credit_window,
            self.lifetimes,
            self.unverified,
            self.authorizer,
        )
        self.forwarding = Forwarding(runtime, routes, self.unrouted)
        self.incoming = Incoming(
            runtime,
            routes,
            self.outgoing,
            self.forwarding,
            self.lifetimes,
            self.paths,
            self.unverified,
            self.credit_window,
            self.credit_issuer,
        )
        #: Handles the frames of one read; for the connector.
        self.deliver: Callable[[Wire, list[RawFrame]], None] = self.incoming.deliver
        self.link_up = self.paths.link_up
        self.objection = self.authorizer.objection
        self.connector.start(self)
        #: Called every second with the time.
        self.on_upkeep: Callable[[float], object] = lambda _: None
        self._pause, self._upkeep_at = (
            UPKEEP_SECONDS,
            runtime.now() + UPKEEP_SECONDS,
        )
        runtime.call_later(UPKEEP_SECONDS, self._housekeep)

    def _grant_credit(self, leaf: bytes, number: int) -> None:
        """Grant credit to a leaf that may not hold a proxy."""
        if "credit" in self.routes.abilities.get(leaf, ()):
            self.credit_issuer.lend(leaf, number)
            self.credit_issuer.flush()  # before anything else is sent

    def _report_no_bounds(self, node: bytes, number: int) -> None:
        """Tell a node that an actor, whose ref it gets in an answer, has an unbounded mailbox.

        The node would also learn this from the answer to its announce, but until then its
        messages to the actor would wait for credit.
        """
        is_here = number in self.runtime.contexts and node not in self.routes.rights
        if is_here and self.credit_issuer.hosting_of(number) is None:
            self._grant_credit(node, number)

    # --- for the connector ---

    def link_down(self, wire: Wire, reason: str, *, is_wanted: bool = True) -> None:
        """Handle the end of a link, after everything that it brought."""
        self.incoming.finish(wire)
        self.paths.link_down(wire, reason, is_wanted=is_wanted)

    @property
    def awaited(self) -> int:
        """Number of unanswered asks to other nodes, and of messages that wait for a path."""
        return self.outgoing.asks.count + self.unrouted.message_count

    def report(self) -> bool:
        """Send delivery reports to other nodes; return whether there were any."""
        routes = self.routes
        reports = routes.accounts.reports(self.credit_issuer.pop_repeats())
        for node, payload in reports:
            frame = pack_frame(
                Operation.DELIVERY_REPORT, 0, routes.node_id, node, 0, 0, payload
            )
            routes.send_to(node, frame)
        return bool(reports)

    def forget_departed(self) -> None:
        """Remove the data about nodes that have been out of reach for long."""
        routes = self.routes
        arrivals, rest = routes.departed.due(self.runtime.now())
        for node in arrivals:
            routes.accounts.forget_arrivals(node)
            self.incoming.forget(node)
            self.lifetimes.forget(node)
        for node in rest:
            with routes.lock:
                routes.accounts.close(node)
            self.paths.forget(node)
            routes.names.pop(node, None)
            routes.abilities.pop(node, None)
            routes.tools.discard(node)
            self.authorizer.forget(node)
            if not self.lifetimes.proxies_of(node):  # proxies may still dial the address
                routes.endpoints.pop(node, None)

    def close(self) -> None:
        """End all links; asks that wait for other nodes fail."""
        self.outgoing.batches.flush()
        self.report()
        self.outgoing.asks.fail(NodeUnreachable("the node was closed"))
        self.paths.close()
        self.foreign.close(CLOSING)
        self.connector.close()
        self.unrouted.close("the node was closed")
        self.outgoing.carry_out()  # refuses the deferred messages

    def _housekeep(self) -> None:
        """Send delivery reports, and once a second do the other periodic work.

        While messages arrive, reports are frequent: when a path is lost, all messages that were
        not reported before count as lost.
        """
        self._pause = REPORT_INTERVAL if self.report() else min(2 * self._pause, UPKEEP_SECONDS)
        now = self.runtime.now()
        if now >= self._upkeep_at:
            self._upkeep_at = now + UPKEEP_SECONDS
            self.lifetimes.release_unused()
            self.forget_departed()
            self.outgoing.asks.forget_done()
            self.on_upkeep(now)
        self.runtime.call_later(self._pause, self._housekeep)
