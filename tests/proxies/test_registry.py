from hypothesis import given
from hypothesis import strategies as st

from proxies.registry import HolderRegistry

A, B = b"a" * 18, b"b" * 18


def test_each_node_that_announced_is_told_of_the_end_once():
    holders = HolderRegistry({7}.__contains__)

    assert holders.announced(A, 7)
    assert holders.announced(A, 7)
    assert holders.announced(B, 7)

    assert sorted(holders.ended(7)) == [A, B]
    assert not holders.ended(7)


def test_an_announce_for_a_dead_actor_is_refused():
    holders = HolderRegistry(set().__contains__)

    assert not holders.announced(A, 7)
    assert not holders.is_held(7)


def test_a_release_takes_the_entry_back():
    holders = HolderRegistry({7}.__contains__)
    holders.announced(A, 7)

    holders.released(B, 7)
    assert holders.is_held(7)
    holders.released(A, 7)

    assert not holders.is_held(7)
    assert not holders.ended(7)


def test_a_lost_node_is_forgotten_everywhere():
    holders = HolderRegistry({7, 8}.__contains__)
    for node, number in ((A, 7), (B, 7), (A, 8)):
        holders.announced(node, number)

    holders.node_lost(A)

    assert list(holders.ended(7)) == [B]
    assert not holders.is_held(8)


STEPS = st.tuples(
    st.sampled_from(["announce", "release", "end", "lose"]),
    st.sampled_from([A, B]),
    st.sampled_from([16, 17]),
)


@given(st.lists(STEPS))
def test_it_behaves_as_a_set_of_pairs(steps):
    alive = {16, 17}
    holders = HolderRegistry(alive.__contains__)
    model: set[tuple[bytes, int]] = set()

    for step, node, number in steps:
        if step == "announce":
            assert holders.announced(node, number) == (number in alive)
            model |= {(node, number)} if number in alive else set()
        elif step == "release":
            holders.released(node, number)
            model.discard((node, number))
        elif step == "end":
            alive.discard(number)
            assert set(holders.ended(number)) == {who for who, held in model if held == number}
            model = {pair for pair in model if pair[1] != number}
        else:
            holders.node_lost(node)
            model = {pair for pair in model if pair[0] != node}
        assert all(
            holders.is_held(each) == any(held == each for _, held in model) for each in (16, 17)
        )


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["announced", "released", "ended", "lost"]),
            st.sampled_from([A, B]),
            st.integers(1, 4),
        )
    )
)
def test_the_count_of_a_node_is_the_number_of_actors_that_it_holds(steps):
    holders = HolderRegistry({1, 2, 3}.__contains__)
    model: set[tuple[bytes, int]] = set()

    for step, node, number in steps:
        if step == "announced" and holders.announced(node, number):
            model.add((node, number))
        elif step == "released":
            holders.released(node, number)
            model.discard((node, number))
        elif step == "ended":
            holders.ended(number)
            model = {entry for entry in model if entry[1] != number}
        elif step == "lost":
            holders.node_lost(node)
            model = {entry for entry in model if entry[0] != node}
        for one in (A, B):
            assert holders.count(one) == sum(entry[0] == one for entry in model)
