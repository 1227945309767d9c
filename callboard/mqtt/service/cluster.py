"""Routers of one cluster: what `claims` decides, carried between the nodes' actors.

All routers on nodes that reach one another are a group. Before a client is let in, all others
are asked for its id; see `claims` for what they answer.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, get_args

from callboard.actors.errors import ActorDown
from callboard.actors.reference import ActorRef
from callboard.mqtt.access.admission import Admission, Admitter, Peer
from callboard.mqtt.service.claims import Answer, Claims, Order, SettleSession, Steps
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
    _tasks: set[asyncio.Task[object]] = field(default_factory=set)

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

        async def claim() -> None:
            steps = self.claims.claim(client_id, is_clean=connect.clean_start)
            ruling = await self._decide(steps)
            answer(ruling if ruling.reason_code else admission)

        self._later(claim())
        return None

    def resolve_all(self) -> None:
        """Ask about unconfirmed copies, and look again in a while."""
        for client_id in list(self.claims.machine.sessions.adopted):
            self._later(self._decide(self.claims.resolve(client_id)))
        self.loop.call_later(RESOLVE_INTERVAL, self.resolve_all)

    def _later(self, work: Coroutine[Any, Any, object]) -> None:
        """Run something on the loop, and keep it until it is done."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _others(self) -> list[ActorRef[Any]]:
        """Return the other routers of the group."""
        # Nearly always the only member is this very ref, which a look for equals would unpack.
        return [ref for ref in self.group if ref is not self.me and ref != self.me]

    async def _decide(self, steps: Steps) -> Admission:
        """Take a decision to its end, with the answers that it waits for."""
        answers: list[Answer] | None = None  # which begins
        while True:
            try:
                order = steps.send(answers)  # type: ignore[arg-type]
            except StopIteration as end:
                self.settle()
                return end.value  # type: ignore[no-any-return]
            self.settle()
            if isinstance(order, SettleSession):
                for ref in self._others():
                    ref.tell(order)
                answers = []
            else:
                answers = await self._ask_all(order)

    async def _ask_all(self, order: Order) -> list[Answer]:
        """Ask all others.

        Those that did not answer in time are None; those that are down have no say.
        """
        asked = [ref.ask(order, timeout=CLAIM_LIMIT) for ref in self._others()]
        found = await asyncio.gather(*asked, return_exceptions=True)
        return [
            each if isinstance(each, _ANSWERS) else None
            for each in found
            if not isinstance(each, ActorDown)
        ]
