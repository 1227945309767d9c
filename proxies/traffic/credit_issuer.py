"""Credit at the receiver: grants each node credit for the bounded mailboxes of this node.

A node that announces a proxy, and supports credit, learns whether the actor has bounds. To an
actor with bounds it may send as many messages as were granted
(`callboard.proxies.ledger.credit`). The actor's node grants more when half of the mailbox is
free, which is also when waiting local senders continue. Each grant is sent at once, and again
with the next delivery report. Must be used on the runner, with its role, except `room`.
"""

from collections.abc import Iterable
from dataclasses import field

from callboard.actors.mailbox import BoundedMailbox
from callboard.actors.runtime import Runtime
from callboard.basp.accounting import CREDIT_LINES, CreditLine, write_credit
from callboard.basp.frame import pack_frame
from callboard.basp.header import NODE_ACTOR, Operation
from callboard.proxies.ledger.credit import KNOWS_CREDIT, NO_BOUND, Grants
from callboard.proxies.ledger.registry import HolderRegistry
from callboard.proxies.messages import AskCredit
from callboard.proxies.route_table import RouteTable
from callboard.support.dataclass import dataclass


class Hosting:
    """The mailbox of one actor, and the nodes that send to it."""

    def __init__(self, issuer: "CreditIssuer", number: int, mailbox: BoundedMailbox) -> None:
        self._credit_issuer = issuer
        self._number = number
        self._mailbox = mailbox
        self._is_waiting = False
        bounds = mailbox.bounds
        self.grants = Grants(bounds.limit, bounds.bytes)

    def knows(self, node: bytes) -> bool:
        """Return whether a node respects grants; its announce may still be under way."""
        return node in self.grants or self._credit_issuer.meet(node, self._number, self.grants)

    def arrived(self, node: bytes) -> None:
        """Count a message from another node that was accepted."""
        self.grants.arrived(node)
        if self.grants.is_wanted:
            self.grant_when_free()

    def grant_when_free(self) -> None:
        """Grant the free space as soon as half of the mailbox is free."""
        pressure = self._mailbox.pressure
        if not self._is_waiting:
            self._is_waiting = True
            pressure.waiters.append(self._room)
        pressure.make_room(self._mailbox.load[0])

    def _room(self) -> None:
        """Schedule `_serve` when there is room. Can be called from any thread."""
        self._credit_issuer.post(self._serve)

    def _serve(self) -> None:
        """Grant the free space; if senders want more, wait until a message is removed."""
        self._is_waiting = False
        for node, up_to, octets in self.grants.serve(*self._mailbox.load):
            self._credit_issuer.queue(node, (self._number, up_to, octets))
        if self.grants.is_wanted and not self._is_waiting:
            self._is_waiting = True
            self._mailbox.pressure.waiters.append(self._room)


@dataclass(eq=False, repr=False)
class CreditIssuer:
    """The credit that one node grants to others for its actors."""

    _runtime: Runtime
    _routes: RouteTable
    _holders: HolderRegistry
    #: Actors with bounds that a node sends to, by node.
    _hosts_of: dict[bytes, set[int]] = field(default_factory=dict)
    #: Grants to send in this turn, and to repeat with the next reports, by node and actor.
    _lines: dict[bytes, dict[int, CreditLine]] = field(default_factory=dict)
    _repeats: dict[bytes, dict[int, CreditLine]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.post = self._runtime.post

    def hosting_of(self, number: int) -> Hosting | None:
        """Return the record of an actor with a bounded mailbox; None for an unbounded one."""
        cell = self._runtime.contexts.get(number)
        mailbox = None if cell is None else cell.waited_for
        if mailbox is None:
            return None
        if mailbox.hosting is None:
            mailbox.hosting = Hosting(self, number, mailbox)
        assert isinstance(mailbox.hosting, Hosting), "only this method sets it"
        return mailbox.hosting

    def announced(self, node: bytes, number: int, sightings: int) -> None:
        """Send the credit of an actor to a node that announced a proxy of it."""
        if sightings >= KNOWS_CREDIT:
            self.lend(node, number)

    def lend(self, node: bytes, number: int) -> None:
        """Send a node its credit for an actor, or the fact that the actor has no bounds."""
        host = self.hosting_of(number)
        if host is None:
            self.queue(node, (number, NO_BOUND, 0))
            return
        self._hosts_of.setdefault(node, set()).add(number)
        self.queue(node, (number, *host.grants.welcome(node)))

    def meet(self, node: bytes, number: int, grants: Grants) -> bool:
        """Register a node whose message arrived; return False if it does not support credit."""
        abilities = self._routes.abilities.get(node)
        if abilities is not None and "credit" not in abilities:
            return False
        self._hosts_of.setdefault(node, set()).add(number)
        grants.welcome(node)
        return True

    def handle_question(self, node: bytes, question: AskCredit) -> None:
        """Handle a node's question for credit: record its position and grant free space."""
        host = self.hosting_of(question.number)
        if host is None:
            if question.number in self._runtime.contexts:
                self.queue(node, (question.number, NO_BOUND, 0))
            return
        self._hosts_of.setdefault(node, set()).add(question.number)
        grants = host.grants
        grants.asks(node, question.position)
        up_to, octets = grants.welcome(node)
        # The grant was lost, or was in flight when the question was sent.
        if up_to > question.position:
            self.queue(node, (question.number, up_to, octets))
        host.grant_when_free()

    def released(self, node: bytes, number: int = NODE_ACTOR) -> None:
        """Withdraw the credit of a node that has released its proxy of an actor, or of all.

        A leaf keeps its credit, because it may send to actors of which it may not hold proxies.
        """
        if node not in self._routes.rights:
            actors = self._hosts_of.get(node, set())
            self._withdraw(node, list(actors) if number == NODE_ACTOR else [number])

    def lost(self, node: bytes) -> None:
        """Withdraw the credit of a node that is out of reach."""
        self._withdraw(node, list(self._hosts_of.get(node, ())))

    def _withdraw(self, node: bytes, numbers: Iterable[int]) -> None:
        """Withdraw the credit of a node for those actors of which it holds no proxy."""
        actors = self._hosts_of.get(node, set())
        for number in actors.intersection(numbers):
            if self._holders.holds(node, number):
                continue
            actors.discard(number)
            host = self.hosting_of(number)
            if host is not None:
                host.grants.leave(node)
                host.grant_when_free()
        if not actors:
            self._hosts_of.pop(node, None)

    # --- sending grants ---

    def queue(self, node: bytes, line: CreditLine) -> None:
        """Queue a line of credit for a node; the lines of a turn are sent together."""
        if not self._lines:
            self.post(self.flush)
        self._lines.setdefault(node, {})[line[0]] = line

    def flush(self) -> None:
        """Send the queued lines of credit."""
        lines_by_node, self._lines = self._lines, {}
        me = self._routes.node_id
        for node, by_actor in lines_by_node.items():
            lines = list(by_actor.values())
            for start in range(0, len(lines), CREDIT_LINES):
                payload = write_credit(lines[start : start + CREDIT_LINES])
                frame = pack_frame(Operation.DELIVERY_REPORT, 0, me, node, 0, 0, payload)
                self._routes.send_to(node, frame)
            again = self._repeats.setdefault(node, {})
            again.update((line[0], line) for line in lines if line[1] != NO_BOUND)

    def pop_repeats(self) -> dict[bytes, list[CreditLine]]:
        """Remove and return the lines of credit to send again with the delivery reports."""
        lines_by_node, self._repeats = self._repeats, {}
        return {
            node: list(lines.values())[:CREDIT_LINES] for node, lines in lines_by_node.items()
        }
