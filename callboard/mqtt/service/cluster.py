"""Routers of one cluster: what `claims` decides, carried between the nodes' actors.

All routers on nodes that reach one another are a group. Before a client is let in, all others
are asked for its id; see `claims` for what they answer.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, get_args

from callboard.actors.errors import ActorDown
from callboard.actors.future import Future
from callboard.actors.reference import ActorRef
from callboard.mqtt.access.admission import Admission, Admitter, Peer
from callboard.mqtt.service.claims import Answer, Claims, Order, Ruling, SettleSession, Steps
from callboard.mqtt.wire.packet import Connect
from callboard.proxies.names.group import Group

#: The group that all routers join.
ROUTERS: Final = "callboard.mqtt.routers"

#: Seconds that the others have to answer.
CLAIM_LIMIT: Final = 2.0

#: Seconds between two questions about an unconfirmed copy.
RESOLVE_INTERVAL: Final = 1.0

_ANSWERS: Final = get_args(Answer)


@dataclass(eq=False)
class ClusterGate:
    """Lets clients in as the gate behind it does, unless the session is on another router.

    Attributes:
        gate: decides first.
        claims: of this router.
        group: all routers.
        me: this one.
        loop: what everything happens on.
        settle: makes what the machine has done so far durable.
    """

    gate: Admitter
    claims: Claims
    group: Group[Any]
    me: ActorRef[Any]
    loop: asyncio.AbstractEventLoop
    settle: Callable[[], None]

    def admit(
        self, connect: Connect, peer: Peer, answer: Callable[[Admission], None]
    ) -> Admission | None:
        """Decide about a client."""

        def judged_later(admission: Admission) -> None:
            ruled = self._rule(connect, admission, answer)
            if ruled is not None:
                answer(ruled)

        admission = self.gate.admit(connect, peer, judged_later)
        return None if admission is None else self._rule(connect, admission, answer)

    def _rule(
        self, connect: Connect, admission: Admission, answer: Callable[[Admission], None]
    ) -> Admission | None:
        """Ask the others about a client that the gate lets in; None while they think."""
        client_id = admission.client_id or connect.client_id
        is_free = not self._others() and client_id not in self.claims.machine.sessions.adopted
        if admission.reason_code or not client_id or is_free:
            return admission

        def ruled(ruling: Ruling) -> None:
            if ruling.reason_code:
                answer(Admission(ruling.reason_code, ruling.address))
            else:
                answer(admission)

        steps = self.claims.claim(client_id, is_clean=connect.clean_start)
        self.loop.call_soon(self._advance, steps, None, ruled)  # never before None is returned
        return None

    def resolve_all(self) -> None:
        """Ask about unconfirmed copies, and look again in a while."""
        for client_id in list(self.claims.machine.sessions.adopted):
            self._advance(self.claims.resolve(client_id), None, lambda _: None)
        self.loop.call_later(RESOLVE_INTERVAL, self.resolve_all)

    def _others(self) -> list[ActorRef[Any]]:
        """Return the other routers of the group."""
        # Nearly always the only member is this very ref, which a look for equals would unpack.
        return [ref for ref in self.group if ref is not self.me and ref != self.me]

    def _advance(
        self, steps: Steps, answers: list[Answer] | None, done: Callable[[Ruling], None]
    ) -> None:
        """Let a decision go on with the answers that it waited for."""
        try:
            order = steps.send(answers)  # type: ignore[arg-type]  # None begins
        except StopIteration as end:
            self.settle()
            done(end.value)
            return
        self.settle()
        if isinstance(order, SettleSession):
            for ref in self._others():
                ref.tell(order)
            self._advance(steps, [], done)
        else:
            self._ask_all(order, lambda found: self._advance(steps, found, done))

    def _ask_all(self, order: Order, done: Callable[[list[Answer]], None]) -> None:
        """Ask all others; `done` gets the answers, on the connections' thread.

        Those that did not answer in time are None; those that are down have no say.
        """
        others = self._others()
        found: list[Answer] = []
        waiting = len(others)

        def answered(future: Future[Any]) -> None:
            nonlocal waiting
            error = future.exception()
            value = future.result() if error is None else None
            if not isinstance(error, ActorDown):
                found.append(value if isinstance(value, _ANSWERS) else None)
            waiting -= 1
            if not waiting:
                done(found)

        def arrived(future: Future[Any]) -> None:
            try:
                self.loop.call_soon_threadsafe(answered, future)
            except RuntimeError:  # the router's loop has ended
                return

        for ref in others:
            ref.ask(order, timeout=CLAIM_LIMIT).add_done_callback(arrived)
        if not others:
            done(found)
