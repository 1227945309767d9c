"""Containers that can be changed, events, and small names."""

import warnings

import pytest

from callboard import broker
from callboard.broker import Data, bro, zeek
from callboard.model.errors import InvalidData


def test_a_vector_is_a_list_of_data():
    vector = broker.Vector([1])
    vector.append(Data("two"))
    vector.extend([3, 3])
    vector.insert(0, None)
    vector[1] = 5
    vector[2:3] = ["x", "y"]
    del vector[0]

    assert repr(vector) == "Vector[5, x, y, 3, 3]"
    assert (vector.count(Data(3)), vector.pop(), len(vector)) == (2, Data(3), 4)
    assert vector[1:3] == broker.Vector(["x", "y"])
    assert Data(vector).as_vector() == Data([5, "x", "y", 3]).as_vector()
    assert vector == Data(vector).as_vector()
    assert vector != [5]


def test_a_set_has_each_value_once_and_in_order():
    members = broker.Set([3, 1])
    members.add(Data(1))
    members.add("x")
    members.remove(Data("never there"))

    assert repr(members) == "Set{1, 3, x}"
    assert Data(1) in members
    assert Data(members) == Data({1, 3, "x"})
    members.clear()
    assert len(members) == 0


def test_a_table_maps_data_to_data():
    table = broker.Table({"b": 1})
    table[Data("a")] = [1]
    del table["b"]

    assert repr(table) == "Table{a: (1)}"
    assert Data("a") in table
    assert list(table.items()) == [(Data("a"), Data([1]))]
    assert Data(table) == Data({"a": [1]})


def test_what_is_put_into_a_value_is_copied():
    vector = broker.Vector([1])
    made = Data([vector])
    vector.append(2)

    assert Data.to_py(made) == ((1,),)


def test_an_event_that_is_none_says_so_and_has_nothing():
    event = zeek.Event(Data([1, 2]))

    assert not event.valid()
    for ask in (event.name, event.args, event.as_data):
        with pytest.raises(InvalidData):
            ask()


def test_the_old_name_of_events_warns_where_it_is_used():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        event = bro.Event("x", 1)

    assert event.args() == [1]
    assert [str(warning.filename) for warning in caught] == [__file__]


def test_a_status_is_no_error_of_the_same_number():
    assert broker.SC.PeerLost == 3 == broker.EC.PeerInvalid
    assert broker.SC.PeerLost != broker.EC.PeerInvalid
    assert broker.EC.PeerInvalid not in set(broker.SC) | {99}


def test_a_message_of_the_old_kind_needs_its_method():
    with pytest.raises(NotImplementedError, match="to_broker"):
        broker.Message().to_broker()


def test_the_version_is_that_of_the_interface():
    assert broker.Version.string() == "1.4.0"
    assert broker.Version.compatible(2)
    assert not broker.Version.compatible(3)
    assert broker.now() <= broker.now()


def test_methods_take_the_keywords_of_the_real_package():
    vector = broker.Vector([1, 2])
    vector.extend(L=[Data(3), Data(3)])
    vector.remove(x=Data(1))

    assert (vector.count(x=Data(3)), vector.pop(i=0), vector.pop()) == (2, Data(2), Data(3))
    with pytest.raises(ValueError, match="not in list"):
        vector.remove(x=Data(9))
    assert broker.Subnet(broker.Address(bytes([10, 0, 0, 0]), 4), 8).contains(
        addr=broker.Address(bytes([10, 9, 8, 7]), 4)
    )


def test_enumerations_print_as_in_the_real_package():
    assert str(Data(1.5).get_type()) == "Type.Real"
    assert str(broker.Port(22, broker.Port.TCP).get_type()) == "Protocol.TCP"
    assert str(broker.PeerFlags.Remote) == "PeerFlags.Remote"
