"""All interleavings of crossing dials, with and without the loss of one connection."""

import copy

import pytest

from basp.handshake import LinkConfig
from basp.link_state import LinkState
from tests.basp.wire import A, B, Wire

CONFIGS = {A: LinkConfig(A), B: LinkConfig(B)}


def explore(wire: Wire, losses: tuple[str, ...]) -> int:
    """Visit every order of deliveries; at each end of the road, call ``check_end``."""
    seen: set[object] = set()
    ends = 0
    todo = [(wire, losses)]
    while todo:
        current, left = todo.pop()
        key = (current.state(), left, getattr(current, "lost_when_up", False))
        if key in seen:
            continue
        seen.add(key)
        current.check()
        moves = [("deliver", i) for i, end in enumerate(current.ends) if end.incoming]
        moves += [(loss, i) for loss in left for i in range(0, len(current.ends), 2)]
        if not [move for move in moves if move[0] == "deliver"]:
            ends += 1
            check_end(copy.deepcopy(current))
        for kind, index in moves:
            branch = copy.deepcopy(current)
            end = branch.ends[index]
            if kind == "deliver":
                branch.deliver(end)
                todo.append((branch, left))
            else:
                was_up = {end.link.state, end.other.link.state} == {LinkState.ESTABLISHED}
                branch.lost_when_up = was_up  # type: ignore[attr-defined]
                (branch.cut if kind == "cut" else branch.break_off)(end)
                todo.append((branch, ()))
    return ends


def check_end(wire: Wire) -> None:
    wire.settle(30.0)
    up = wire.established()
    may_be_none = getattr(wire, "lost_when_up", False)
    if may_be_none and not up:
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


@pytest.mark.parametrize("dials", [[(A, B), (B, A)], [(A, B), (A, B)], [(B, A), (B, A)]])
def test_crossing_dials_end_with_exactly_one_link(dials):
    assert explore(Wire(CONFIGS, dials), ()) > 0


@pytest.mark.parametrize("loss", ["cut", "break_off"])
@pytest.mark.parametrize("dials", [[(A, B), (B, A)], [(A, B), (A, B)], [(B, A), (B, A)]])
def test_the_loss_of_one_connection_leaves_the_other(dials, loss):
    assert explore(Wire(CONFIGS, dials), (loss,)) > 0


def test_three_crossing_dials_end_with_exactly_one_link():
    wire = Wire(CONFIGS, [(A, B), (B, A), (A, B)])
    wire.settle(10.0)
    check_end(wire)
