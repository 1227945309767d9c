"""Crossing dials of two nodes, with and without the loss of one connection."""

import copy
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

from callboard.basp.handshake import LinkConfig
from callboard.basp.link import LinkState
from callboard.basp.node_id import NodeId
from tests.basp.wire import A, B, Wire
from tests.search.explorer import Model

CONFIGS = {A: LinkConfig(A), B: LinkConfig(B)}


@dataclass
class Dials:
    """Two nodes, the frames between them, and the remaining failures."""

    wire: Wire
    losses: tuple[str, ...]
    lost_when_up: bool = False


class Handshake(Model[Dials]):
    """Some dials at once, and at most one loss: `cut` is silent, `break_off` is noticed."""

    def __init__(
        self, dials: list[tuple[NodeId, NodeId]], losses: tuple[str, ...] = ()
    ) -> None:
        self._dials = dials
        self._losses = losses

    def start(self) -> Dials:
        return Dials(Wire(CONFIGS, self._dials), self._losses)

    def key(self, state: Dials) -> Hashable:
        return state.wire.state(), state.losses, state.lost_when_up

    def steps(self, state: Dials) -> Iterator[tuple[Any, Dials]]:
        for index, end in enumerate(state.wire.ends):
            if end.incoming:
                after = copy.deepcopy(state)
                after.wire.deliver(after.wire.ends[index])
                yield f"end {index} takes {len(end.incoming[0])} B", after
        for loss in state.losses:
            for index in range(0, len(state.wire.ends), 2):
                after = copy.deepcopy(state)
                end = after.wire.ends[index]
                ends = {end.link.state, end.other.link.state}
                after.losses, after.lost_when_up = (), ends == {LinkState.ESTABLISHED}
                (after.wire.cut if loss == "cut" else after.wire.break_off)(end)
                yield f"{loss} of connection {index // 2}", after

    def check(self, state: Dials) -> bool:
        state.wire.check()
        if any(end.incoming for end in state.wire.ends):
            return False
        self._check_end(copy.deepcopy(state))
        return True

    def _check_end(self, state: Dials) -> None:
        wire = state.wire
        wire.settle(30.0)
        up = wire.established()
        if state.lost_when_up and not up:
            return
        assert len(up) == 2, [(end.link.state, end.names()) for end in wire.ends]
        assert up[0].other is up[1]
        assert not up[0].is_cut
        for end in wire.ends:
            assert end in up or end.link.state is LinkState.CLOSED
        # The redundant one learned it on both sides, and only after its node had a link.
        for pairs, peer in zip(wire.pairs.values(), (B, A), strict=True):
            assert pairs.holder(peer) in [end.link for end in up]
            assert pairs.parked(peer) == ()
