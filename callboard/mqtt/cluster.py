"""Routers of one cluster: a session lives on one of them, whichever it was that made it.

All routers on nodes that reach one another are a group. Before a client is let in, the others
are asked for its id. Who has its lasting session answers where that is, and the client is
refused with *use another server*; who has a client or session of that id that need not last, or
that a clean start ends, gives it up. A router that does not answer in time has no say.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from actors.future import Future
from actors.reference import ActorRef
from callboard.mqtt.door import Admission, Gate, Peer
from callboard.mqtt.packet import Connect
from callboard.mqtt.reason_code import ReasonCode
from proxies.messages import message

if TYPE_CHECKING:
    from proxies.group import Group

ROUTERS: Final = "callboard.mqtt.routers"
"""The group that all routers join."""

CLAIM_LIMIT: Final = 2.0
"""Seconds that the others have to answer."""


@message("callboard.mqtt.ClaimSession")
@dataclass(frozen=True)
class ClaimSession:
    """A client connects elsewhere; answered with the address that has its session, or nothing.

    Attributes:
        client_id: of the client.
        is_clean: whether it wants no session that was before.
    """

    client_id: str
    is_clean: bool


class ClusterGate:
    """Lets in who the gate behind it lets in, unless the session is on another router."""

    def __init__(
        self,
        gate: Gate,
        group: "Group[Any]",
        me: ActorRef[Any],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._gate = gate
        self._group = group
        self._me = me
        self._loop = loop

    def admit(
        self, connect: Connect, peer: Peer, answer: Callable[[Admission], None]
    ) -> Admission | None:
        """Decide about a client."""

        def judged_later(admission: Admission) -> None:
            settled = self._settle(connect, admission, answer)
            if settled is not None:
                answer(settled)

        admission = self._gate.admit(connect, peer, judged_later)
        return None if admission is None else self._settle(connect, admission, answer)

    def _settle(
        self, connect: Connect, admission: Admission, answer: Callable[[Admission], None]
    ) -> Admission | None:
        """Ask the others about somebody whom the gate lets in; None while they think."""
        # Nearly always the only member is this very ref, which a look for equals would unpack.
        others = [ref for ref in self._group if ref is not self._me and ref != self._me]
        client_id = admission.client_id or connect.client_id
        if admission.reason_code or not others or not client_id:
            return admission
        claim = ClaimSession(client_id, connect.clean_start)
        self._claim(others, claim, admission, answer)
        return None

    def _claim(
        self,
        others: list[ActorRef[Any]],
        claim: ClaimSession,
        admission: Admission,
        answer: Callable[[Admission], None],
    ) -> None:
        """Ask the others; the answer is given on the connections' thread."""
        left = len(others)

        def answered(future: Future[Any]) -> None:
            nonlocal left
            left -= 1
            where = "" if future.exception() is not None else future.result()
            if isinstance(where, str) and where and left >= 0:
                left = -1
                answer(Admission(ReasonCode.USE_ANOTHER_SERVER, where))
            elif left == 0:
                answer(admission)

        def arrived(future: Future[Any]) -> None:
            self._loop.call_soon_threadsafe(answered, future)

        for ref in others:
            ref.ask(claim, timeout=CLAIM_LIMIT).add_done_callback(arrived)
