"""Refs: equal when they name the same actor, keys of dictionaries, text."""

import copy
import operator
import pickle  # noqa: TID251  # to see that it is refused

import pytest
from thespian.actors import ActorAddress

from callboard import ActorRef
from callboard.actors.errors import InvalidAddress
from callboard.actors.runtime import Runtime
from tests.actors.sample import Echo


def test_refs_to_one_actor_are_equal_and_have_one_hash(runtime):
    ref = runtime.start_actor(Echo)
    again = runtime.ref_of(ref.node_id, ref.actor_id)
    third = ActorRef(runtime, ref.node_id, ref.actor_id, ref.target)

    assert ref == again == third
    assert {ref: 1}[third] == 1
    assert ref != runtime.start_actor(Echo)
    assert ref != "something else"


def test_refs_are_ordered(runtime):
    one, two = runtime.start_actor(Echo), runtime.start_actor(Echo)

    assert sorted([two, one]) == sorted([one, two])
    assert (one < two) == (one <= two) == (not one > two) == (not one >= two)


def test_refs_of_one_number_on_two_nodes_differ(runtime, no_thread_left):
    other = Runtime("other")
    ref = runtime.start_actor(Echo, number=500)
    there = other.start_actor(Echo, number=500)

    assert ref != there
    other.end_actors()
    other.close()


def test_a_ref_names_node_and_number(runtime):
    ref = runtime.start_actor(Echo, number=500)

    assert (ref.node_id, ref.actor_id, ref.is_local) == (runtime.node_id, 500, True)
    assert str(ref) == f"basp:///500@{runtime.node_id.hex()}"
    assert ref.home is runtime


def test_a_ref_is_an_address_of_thespians(runtime):
    ref = runtime.start_actor(Echo)

    assert isinstance(ref, ActorAddress)
    assert ref.addressDetails == ref.actorAddressString == str(ref)


def test_copies_are_the_same_ref(runtime):
    ref = runtime.start_actor(Echo)

    assert copy.copy(ref) is ref
    assert copy.deepcopy([ref])[0] is ref


def test_a_ref_is_never_pickled(runtime):
    with pytest.raises(TypeError, match="bound to its node"):
        pickle.dumps(runtime.start_actor(Echo))


def test_the_ref_of_an_actor_that_ended_equals_the_one_it_had(runtime):
    ref = runtime.start_actor(Echo)
    down = runtime.monitor(ref)
    ref.stop()
    down.result(5)

    again = runtime.ref_of(ref.node_id, ref.actor_id)

    assert again == ref
    assert runtime.monitor(again).result(5).reason == "not_found"


def test_without_other_nodes_a_remote_ref_is_refused(runtime):
    with pytest.raises(InvalidAddress, match="no other nodes"):
        runtime.ref_of(bytes(18), 5)


def test_refs_have_no_order_with_other_things(runtime):
    ref = runtime.start_actor(Echo)

    for compared in (operator.lt, operator.le, operator.gt, operator.ge):
        with pytest.raises(TypeError, match="not supported between"):
            compared(ref, 5)
