"""Neighbors that are leaves: they do not forward, and see only the nodes they may reach."""

from hypothesis import given
from hypothesis import strategies as st

from callboard.basp.node_id import NodeId
from callboard.basp.routing.router import Router
from callboard.basp.routing.update import Cut, PathVector, Statement, read_update
from tests.basp.wire import write_update

ME, LEAF, B, C, D = (NodeId(bytes([n]) * 18) for n in range(1, 6))


def member_with(*reach, named=(("office", C),)):
    router = Router(ME)
    router.names.update((node, name) for name, node in named)
    router.add_peer(B)
    return router, router.add_peer(LEAF, reach)


def told(changes, to):
    return [read_update(ME, payload) for peer, payload in changes.updates if peer == to]


def test_a_leaf_without_patterns_is_not_announced_and_receives_no_announcements():
    router, changes = member_with()
    assert (changes.gained, changes.updates) == ([LEAF], [])
    assert router.receive(B, write_update([PathVector((B, C), (1, 1))], [])).updates == []
    assert router.path(LEAF) == (LEAF,)

    changes = router.remove_peer(LEAF)

    assert (changes.lost, changes.updates, router.active) == ([LEAF], [], set())
    assert router.path(C) == (B, C)
    fresh = router.add_peer(D)
    assert [vector.path[-1] for vector in told(fresh, D)[0].announced] == [B, C]


def test_a_leaf_and_the_nodes_it_may_reach_are_announced_to_each_other():
    router, changes = member_with("off*")
    assert [vector.path for vector in told(changes, B)[0].announced] == [(ME, LEAF)]
    changes = router.receive(B, write_update([PathVector((B, C), (1, 1))], []))
    assert [vector.path for vector in told(changes, LEAF)[0].announced] == [(ME, B, C)]
    router.names[D] = "office"
    assert not told(router.add_peer(D, ["*"]), LEAF)  # that is another leaf

    changes = router.receive(B, write_update([], [C]))

    assert told(changes, LEAF)[0].withdrawn == [C]
    (said,) = told(changes, B)[0].statements
    assert (said.seeking, said.neighbors) == ({C}, {B})


@given(
    st.lists(st.sampled_from([(LEAF, C), (LEAF, B), (LEAF, D, C), (LEAF, ME)]), max_size=3),
    st.lists(st.sampled_from([B, C, D]), max_size=2),
    st.lists(
        st.builds(Cut, st.sampled_from([ME, B]), st.just(C), st.integers(0, 99)), max_size=2
    ),
    st.lists(
        st.builds(
            Statement,
            st.sampled_from([ME, B, C]),
            st.integers(0, 2**40),
            st.just(frozenset({ME})),
            st.just(frozenset({C})),
        ),
        max_size=2,
    ),
)
def test_statements_of_a_leaf_about_other_nodes_are_ignored(paths, withdrawn, cuts, said):
    router, _ = member_with("*")
    router.receive(B, write_update([PathVector((B, C), (1, 1))], []))
    before = dict(router.next_hops), dict(router.carriers), router._stamp
    vectors = [PathVector(path, (9,) * len(path)) for path in paths]

    changes = router.receive(LEAF, write_update(vectors, withdrawn, cuts, said))

    assert (changes.updates, changes.gained, changes.lost, changes.moved) == ([], [], [], [])
    assert (router.next_hops, router.carriers, router._stamp) == before


def test_a_leafs_search_ends_at_once():
    router, leaf = member_with()[0], Router(LEAF)
    leaf.add_peer(ME)
    leaf.add_peer(D)
    assert leaf.receive(D, write_update([PathVector((D, C), (1, 1))], [])).gained == [C]
    sought = leaf.remove_peer(D)
    assert leaf.active == {C, D}

    (update,) = [payload for peer, payload in sought.updates if peer == ME]
    answers = router.receive(LEAF, update).updates

    (answer,) = [payload for peer, payload in answers if peer == LEAF]
    assert sorted(leaf.receive(ME, answer).lost) == [C, D]
    assert leaf.path(ME) == (ME,)


def test_a_search_of_a_leaf_is_answered_after_our_search_for_the_same_node():
    router, leaf = member_with("office")[0], Router(LEAF)
    leaf.add_peer(ME)
    (told_of,) = [
        payload
        for peer, payload in router.receive(
            B, write_update([PathVector((B, C), (1, 1))], [])
        ).updates
        if peer == LEAF
    ]
    assert leaf.receive(ME, told_of).gained == [C]

    (withdrawn,) = [
        payload
        for peer, payload in router.receive(B, write_update([], [C])).updates
        if peer == LEAF
    ]
    (seeking,) = [payload for _, payload in leaf.receive(ME, withdrawn).updates]
    assert router.receive(LEAF, seeking).updates == []
    over = router.receive(B, write_update([], [], [], [Statement(B, 9, {ME}, {C})]))

    assert over.lost == [C]
    (answer,) = [payload for peer, payload in over.updates if peer == LEAF]
    assert leaf.receive(ME, answer).lost == [C]
