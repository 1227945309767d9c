from hypothesis import given
from hypothesis import strategies as st

from callboard.actors.exit_reason import ExitReason
from callboard.proxies.ledger import registry
from callboard.proxies.ledger.registry import HolderRegistry

A, B = b"a" * 18, b"b" * 18
ERROR = (ExitReason.ERROR, "why")


def sweep(holders, node, sightings):
    is_first = holders.swept(node, sightings)
    list(holders.sweep(node, sightings))
    return is_first


def test_each_node_that_announced_is_told_of_the_end():
    holders = HolderRegistry({7}.__contains__)

    assert holders.announced(A, 7, 1) is None
    assert holders.announced(A, 7, 1) is None
    assert holders.announced(B, 7, 1) is None

    assert sorted(holders.ended(7, *ERROR)) == [A, B]


def test_an_announce_for_a_dead_actor_is_refused_with_the_reason_if_it_is_known():
    alive = {7, 8}
    holders = HolderRegistry(alive.__contains__)
    holders.announced(A, 7, 1)
    alive.clear()
    holders.ended(7, *ERROR)
    holders.ended(8, *ERROR)  # nobody cared

    assert holders.announced(B, 7, 1) == ERROR
    assert holders.announced(B, 8, 2) == (ExitReason.NOT_FOUND, "")


def test_a_number_is_held_after_the_end_until_all_released_it():
    alive = {7}
    holders = HolderRegistry(alive.__contains__)
    holders.announced(A, 7, 1)
    holders.announced(B, 7, 1)
    alive.clear()
    holders.ended(7, *ERROR)

    holders.released(A, 7, 1)
    assert holders.is_held(7)
    holders.released(B, 7, 1)

    assert not holders.is_held(7)
    assert [*holders.owed(A), *holders.owed(B)] == []


def test_what_ended_is_owed_until_it_is_released():
    alive = {7, 8}
    holders = HolderRegistry(alive.__contains__)
    holders.announced(A, 7, 1)
    holders.announced(A, 8, 2)
    alive.remove(7)
    holders.ended(7, *ERROR)

    assert [*holders.owed(A)] == [(7, *ERROR)]
    assert [*holders.owed(B)] == []
    holders.released(A, 7, 1)

    assert [*holders.owed(A)] == []


def test_a_release_that_is_older_than_the_latest_announce_is_ignored():
    holders = HolderRegistry({7}.__contains__)
    holders.announced(A, 7, 1)
    holders.announced(A, 7, 2)

    holders.released(A, 7, 1)
    assert holders.is_held(7)
    holders.announced(A, 7, 1)  # it came late
    holders.released(A, 7, 2)

    assert not holders.is_held(7)


def test_a_sweep_forgets_what_is_older_and_what_comes_late():
    holders = HolderRegistry({7, 8}.__contains__)
    holders.announced(A, 7, 3)
    holders.announced(A, 8, 4)

    sweep(holders, A, 3)
    sweep(holders, A, 1)
    holders.announced(A, 7, 2)

    assert not holders.is_held(7)
    assert holders.is_held(8)


def test_what_comes_late_and_is_not_taken_back_holds_after_a_while():
    """A sweep that a node never sent, far ahead of all that it announces."""
    holders = HolderRegistry({7, 8}.__contains__)
    assert sweep(holders, A, 1 << 63)
    assert not sweep(holders, A, 1 << 62)
    for sightings, number in enumerate((7, 8, 9), 4):
        assert holders.announced(A, number, sightings) is None
    sweep(holders, A, 3)
    holders.released(A, 8, 5)
    assert not holders.is_held(7)

    assert [*holders.settle(A)] == [(9, (ExitReason.NOT_FOUND, ""))]

    assert (holders.holds(A, 7), holders.holds(A, 8)) == (True, False)
    assert holders.announced(A, 8, 7) is None
    assert holders.holds(A, 8)


def test_what_comes_late_is_taken_back_by_the_next_sweep():
    holders = HolderRegistry({7}.__contains__)
    sweep(holders, A, 9)
    holders.announced(A, 7, 4)

    sweep(holders, A, 4)

    assert [*holders.settle(A)] == []
    assert not holders.is_held(7)


def test_a_lost_node_is_forgotten_everywhere():
    holders = HolderRegistry({7, 8}.__contains__)
    for node, number in ((A, 7), (B, 7), (A, 8)):
        holders.announced(node, number, 1)
    sweep(holders, A, 0)

    list(holders.node_lost(A))

    assert list(holders.ended(7, *ERROR)) == [B]
    assert not holders.is_held(8)
    assert holders.announced(A, 8, 0) is None
    assert holders.is_held(8)


def test_a_node_over_its_limit_is_refused_but_may_announce_again_what_it_holds():
    holders = HolderRegistry({7, 8}.__contains__)
    holders.announced(A, 7, 1, limit=1)

    refused = holders.announced(A, 8, 2, limit=1)

    assert refused == (ExitReason.UNREACHABLE, "the node holds 1 proxies already")
    assert holders.announced(A, 7, 3, limit=1) is None
    assert holders.announced(B, 8, 1, limit=1) is None


def test_texts_of_ends_are_kept_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(registry, "DETAILS_LIMIT", 1)
    alive = {7, 8}
    holders = HolderRegistry(alive.__contains__)
    for number in (7, 8):
        holders.announced(A, number, number)
    alive.clear()
    for number in (7, 8):
        holders.ended(number, *ERROR)

    assert sorted(holders.owed(A)) == [(7, *ERROR), (8, ExitReason.ERROR, "")]


STEPS = st.tuples(
    st.sampled_from(["announce", "release", "sweep", "end", "lose"]),
    st.sampled_from([A, B]),
    st.integers(16, 18),
    st.integers(1, 5),
)


@given(st.lists(STEPS))
def test_it_behaves_as_a_table_of_sightings(steps):
    alive = {16, 17, 18}
    holders = HolderRegistry(alive.__contains__)
    model: dict[tuple[bytes, int], int] = {}
    swept = {A: 0, B: 0}

    for step, node, number, sightings in steps:
        if step == "announce":
            ending = holders.announced(node, number, sightings)
            if sightings > swept[node]:
                assert (ending is None) == (number in alive)
                model[node, number] = max(sightings, model.get((node, number), 0))
        elif step == "release":
            holders.released(node, number, sightings)
            if model.get((node, number), sightings + 1) <= sightings:
                del model[node, number]
        elif step == "sweep":
            sweep(holders, node, sightings)
            swept[node] = max(swept[node], sightings)
            model = {k: seen for k, seen in model.items() if k[0] != node or seen > swept[node]}
        elif step == "end":
            alive.discard(number)
            assert set(holders.ended(number, *ERROR)) == {k[0] for k in model if k[1] == number}
        else:
            list(holders.node_lost(node))
            swept[node] = 0
            model = {k: seen for k, seen in model.items() if k[0] != node}
        for each in (16, 17, 18):
            assert holders.is_held(each) == any(held == each for _, held in model)
        for one in (A, B):
            assert holders.count(one) == sum(k[0] == one for k in model)
            owed = sorted(number for who, number in model if who == one and number not in alive)
            assert sorted(number for number, *_ in holders.owed(one)) == owed
