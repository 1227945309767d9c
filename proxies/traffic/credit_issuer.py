"""Credit at the receiver: which nodes may send how much to the bounded mailboxes here.

A node that announces a proxy, and knows of credit, is told whether the actor has bounds. With
bounds it may send what it was granted (`callboard.proxies.ledger.credit`); it is granted more
when half of the mailbox is free, as local senders go on then, too. Each grant goes out at once,
and again with the next delivery report. On the runner, with its role, but for `room`.
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

    def __init__(self, granting: "CreditIssuer", number: int, mailbox: BoundedMailbox) -> None:
        self._granting = granting
        self._number = number
        self._mailbox = mailbox
        self._is_waiting = False
        bounds = mailbox.bounds
        self.grants = Grants(bounds.limit, bounds.bytes)

    def knows(self, node: bytes) -> bool:
        """Return whether a node sends what it was granted; its announce may be held up."""
        return node in self.grants or self._granting.meet(node, self._number, self.grants)

    def arrived(self, node: bytes) -> None:
        """Count a message of another node that was taken."""
        self.grants.arrived(node)
        if self.grants.is_wanted:
            self.attend()

    def attend(self) -> None:
        """Grant what is free as soon as half of the mailbox is."""
        pressure = self._mailbox.pressure
        if not self._is_waiting:
            self._is_waiting = True
            pressure.waiters.append(self._room)
        pressure.make_room(self._mailbox.load[0])

    def _room(self) -> None:
        """Take note that there is room; from any thread."""
        self._granting.post(self._serve)

    def _serve(self) -> None:
        """Grant what is free; if more is wanted, the next message that is taken out tells."""
        self._is_waiting = False
        for node, up_to, octets in self.grants.serve(*self._mailbox.load):
            self._granting.tell(node, (self._number, up_to, octets))
        if self.grants.is_wanted and not self._is_waiting:
            self._is_waiting = True
            self._mailbox.pressure.waiters.append(self._room)


@dataclass(eq=False, repr=False)
class CreditIssuer:
    """What other nodes may send to the actors of one node."""

    _runtime: Runtime
    _routes: RouteTable
    _holders: HolderRegistry
    #: Actors with bounds that a node sends to, by node.
    _hosts_of: dict[bytes, set[int]] = field(default_factory=dict)
    #: What is to be told to nodes in this turn, and again with their next reports, by actor.
    _lines: dict[bytes, dict[int, CreditLine]] = field(default_factory=dict)
    _again: dict[bytes, dict[int, CreditLine]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.post = self._runtime.post

    def guests_of(self, number: int) -> Hosting | None:
        """Return what keeps the credit of an actor; None if it takes what comes."""
        cell = self._runtime.contexts.get(number)
        mailbox = None if cell is None else cell.waited_for
        if mailbox is None:
            return None
        if mailbox.guests is None:
            mailbox.guests = Hosting(self, number, mailbox)
        assert isinstance(mailbox.guests, Hosting), "made here only"
        return mailbox.guests

    def announced(self, node: bytes, number: int, sightings: int) -> None:
        """Tell a node that has a proxy of an actor whether it has bounds."""
        if sightings >= KNOWS_CREDIT:
            self.lend(node, number)

    def lend(self, node: bytes, number: int) -> None:
        """Tell a node that knows of credit whether an actor has bounds."""
        host = self.guests_of(number)
        if host is None:
            self.tell(node, (number, NO_BOUND, 0))
            return
        self._hosts_of.setdefault(node, set()).add(number)
        self.tell(node, (number, *host.grants.welcome(node)))

    def meet(self, node: bytes, number: int, grants: Grants) -> bool:
        """Take note of a node whose message has come; False if it knows of no credit."""
        said = self._routes.abilities.get(node)
        if said is not None and "credit" not in said:
            return False
        self._hosts_of.setdefault(node, set()).add(number)
        grants.welcome(node)
        return True

    def asked(self, node: bytes, question: AskCredit) -> None:
        """Take note of where a node is, and grant it what is free."""
        host = self.guests_of(question.number)
        if host is None:
            if question.number in self._runtime.contexts:
                self.tell(node, (question.number, NO_BOUND, 0))
            return
        self._hosts_of.setdefault(node, set()).add(question.number)
        grants = host.grants
        grants.asks(node, question.position)
        up_to, octets = grants.welcome(node)
        if up_to > question.position:  # it has not come, or crossed the question
            self.tell(node, (question.number, up_to, octets))
        host.attend()

    def released(self, node: bytes, number: int = NODE_ACTOR) -> None:
        """Forget what a node may send to an actor, or any, that it holds no proxy of.

        A leaf may send where it may hold none.
        """
        if node not in self._routes.rights:
            known = self._hosts_of.get(node, set())
            self._leave(node, list(known) if number == NODE_ACTOR else [number])

    def lost(self, node: bytes) -> None:
        """Forget what a node that is out of reach may send."""
        self._leave(node, list(self._hosts_of.get(node, ())))

    def _leave(self, node: bytes, numbers: Iterable[int]) -> None:
        """Forget what a node may send to actors, but where it holds a proxy."""
        known = self._hosts_of.get(node, set())
        for number in known.intersection(numbers):
            if self._holders.holds(node, number):
                continue
            known.discard(number)
            host = self.guests_of(number)
            if host is not None:
                host.grants.leave(node)
                host.attend()
        if not known:
            self._hosts_of.pop(node, None)

    # --- telling ---

    def tell(self, node: bytes, line: CreditLine) -> None:
        """Tell a node of credit, with everything else of this turn."""
        if not self._lines:
            self.post(self.flush)
        self._lines.setdefault(node, {})[line[0]] = line

    def flush(self) -> None:
        """Tell the nodes what they were granted."""
        told, self._lines = self._lines, {}
        me = self._routes.node_id
        for node, by_actor in told.items():
            lines = list(by_actor.values())
            for at in range(0, len(lines), CREDIT_LINES):
                payload = write_credit(lines[at : at + CREDIT_LINES])
                frame = pack_frame(Operation.DELIVERY_REPORT, 0, me, node, 0, 0, payload)
                self._routes.send_to(node, frame)
            again = self._again.setdefault(node, {})
            again.update((line[0], line) for line in lines if line[1] != NO_BOUND)

    def told_again(self) -> dict[bytes, list[CreditLine]]:
        """Return what is to be told again, once."""
        told, self._again = self._again, {}
        return {node: list(lines.values())[:CREDIT_LINES] for node, lines in told.items()}
