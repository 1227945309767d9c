"""Plain classes travel as their names and attributes, if their module is listed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.basp.errors import MalformedPayload, NotSerializable, UnknownMessageType
from callboard.basp.payload import PayloadCodec
from callboard.basp.plain_types import PlainRegistry, is_plain
from callboard.basp.registry import MessageRegistry


class Plain:
    def __init__(self, required):
        self.required = required


class Child(Plain):
    pass


class Slotted:
    __slots__ = ("a",)


class OwnMaker:
    def __new__(cls):
        return super().__new__(cls)


class Listed(list):
    pass


class Outer:
    class Inner:
        pass


CLASSES = {cls.__qualname__: cls for cls in (Plain, Child, Slotted, OwnMaker, Listed, Outer)}
CLASSES["Outer.Inner"] = Outer.Inner


def find(module, qualified):
    return CLASSES.get(qualified) if module == __name__ else None


def codec(modules=(__name__,), surely=()):
    return PayloadCodec(PlainRegistry(MessageRegistry(), modules, find, surely))


def made(cls, **attributes):
    instance = object.__new__(cls)
    instance.__dict__.update(attributes)
    return instance


@given(
    st.dictionaries(st.text(), st.integers() | st.text() | st.lists(st.booleans()), max_size=5)
)
def test_attributes_survive_a_round_trip(attributes):
    sent = made(Child, **attributes)

    came = codec().decode_message(codec().encode([sent]))[0]

    assert type(came) is Child
    assert vars(came) == attributes


def test_classes_inside_classes_and_classes_as_values():
    sent = [made(Outer.Inner, other=made(Plain)), Outer.Inner, Plain]

    came = codec().decode_message(codec().encode(sent))

    assert type(came[0]) is Outer.Inner
    assert type(came[0].other) is Plain
    assert came[1:] == [Outer.Inner, Plain]


@pytest.mark.parametrize("cls", [Slotted, OwnMaker, Listed])
def test_a_class_with_content_beyond_attributes_is_not_plain(cls):
    assert not is_plain(cls)
    with pytest.raises(NotSerializable, match="register it"):
        codec().encode(cls())


def test_local_classes_do_not_travel():
    class Local:
        pass

    with pytest.raises(NotSerializable):
        codec().encode(Local())


@pytest.mark.parametrize("value", [made(Plain), Plain, [made(Plain, a=1)]])
def test_a_module_that_is_not_listed_is_named(value):
    with pytest.raises(NotSerializable, match="SystemBase"):
        codec(()).encode(value)


@pytest.mark.parametrize("value", [made(Plain), Plain])
def test_a_class_that_is_not_listed_is_not_created(value):
    payload = codec().encode(value)

    with pytest.raises(UnknownMessageType):
        codec(()).decode_message(payload)


def test_some_classes_travel_in_any_case():
    came = codec((), (Plain,)).decode_message(codec((), (Plain,)).encode(made(Plain, a=1)))

    assert came.a == 1


@pytest.mark.parametrize("content", [7, [1], {1: 2}])
def test_attributes_that_are_not_a_map_of_texts_are_refused(content):
    kind = PlainRegistry(MessageRegistry(), (__name__,), find).type_of(Plain)

    with pytest.raises(MalformedPayload):
        kind.build(content)


@pytest.mark.parametrize("content", [7, None, ["a"]])
def test_a_class_that_is_not_a_name_is_refused(content):
    kind = PlainRegistry(MessageRegistry(), (__name__,), find).type_of(type)

    with pytest.raises(MalformedPayload):
        kind.build(content)


def test_an_attribute_that_cannot_travel_is_named_with_its_path():
    with pytest.raises(NotSerializable, match=r"message\.lock"):
        codec().encode(made(Plain, lock=object()))
