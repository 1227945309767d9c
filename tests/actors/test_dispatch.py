"""Handlers by message type: the class, its ancestors, unions, and the rest."""

import enum
import functools
from typing import Any, Optional

import pytest

from callboard import Actor, handler
from callboard.actors.dispatch import DispatchTable
from callboard.actors.errors import CallboardError, InvalidHandler
from tests.actors import text_annotations


class Base: ...


class Middle(Base): ...


class Leaf(Middle): ...


class Color(enum.IntEnum):
    RED = 1


class Many(Actor):
    @handler
    def base(self, msg: Base) -> str: ...

    @handler
    def middle(self, msg: Middle) -> str: ...

    @handler
    def union(self, msg: int | bytes) -> str: ...

    @handler
    def optional(self, msg: Optional[list[str]]) -> str:  # noqa: UP045
        ...

    @handler()
    async def rest(self, msg: object) -> str: ...


def handles(actor_class, message):
    entry = DispatchTable(actor_class)[type(message)]
    return entry and entry.function.__name__


@pytest.mark.parametrize(
    ("message", "name"),
    [
        (Base(), "base"),
        (Middle(), "middle"),
        (Leaf(), "middle"),
        (1, "union"),
        (True, "union"),
        (Color.RED, "union"),
        (b"", "union"),
        (["x"], "optional"),
        (None, "optional"),
        ("text", "rest"),
        (1.5, "rest"),
    ],
)
def test_the_nearest_class_of_the_message_decides(message, name):
    assert handles(Many, message) == name


def test_any_is_the_rest_too():
    class Catching(Actor):
        @handler
        def rest(self, msg: Any) -> None: ...

    assert handles(Catching, object()) == "rest"


def test_coroutine_handlers_are_known():
    table = DispatchTable(Many)

    assert table[str].is_coroutine
    assert not table[int].is_coroutine


def test_a_message_type_that_is_not_declared_has_no_handler():
    class Few(Actor):
        @handler
        def text(self, msg: str) -> None: ...

    assert handles(Few, 1) is None


def test_a_subclass_overrides_a_handler_and_adds_others():
    class Derived(Many):
        @handler
        def union(self, msg: int) -> str: ...

        @handler
        def better(self, msg: Base) -> str: ...

    assert DispatchTable(Derived)[int].function is Derived.union
    assert handles(Derived, b"") == "rest"
    assert handles(Derived, Base()) == "better"
    assert handles(Derived, Leaf()) == "middle"


def test_overriding_a_handler_without_the_mark_keeps_it_a_handler():
    class Derived(Many):
        def union(self, msg): ...

    assert DispatchTable(Derived)[bytes].function is Derived.union


def test_a_subclass_takes_a_handler_away_with_none():
    class Derived(Many):
        union = None

    assert handles(Derived, 1) == "rest"


def test_annotations_may_be_text(runtime):
    ref = runtime.start_actor(text_annotations.Texts)

    assert ref.ask(text_annotations.Later("a")).result(5) == "a"
    assert ref.ask(3).result(5) == "int | bytes"


def test_annotations_as_text_may_name_local_classes(runtime):
    class Local: ...

    class Knows(Actor):
        @handler
        def local(self, msg: "Local") -> "NowhereToBeFound":  # noqa: F821
            return "found"

    assert runtime.start_actor(Knows).ask(Local()).result(5) == "found"


def without_message():
    class Bad(Actor):
        @handler
        def go(self) -> None: ...


def without_annotation():
    class Bad(Actor):
        @handler
        def go(self, msg): ...


def with_an_instance():
    class Bad(Actor):
        @handler
        def go(self, msg: 5) -> None: ...


def with_two_messages():
    class Bad(Actor):
        @handler
        def go(self, msg: int, other: str) -> None: ...


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (
            without_message,
            r"Bad.go has no parameter for the message; declare it as \(self, msg: Type\)",
        ),
        (without_annotation, "annotate 'msg'"),
        (with_an_instance, "5 is not a class"),
        (with_two_messages, "needs 'other' besides the message"),
    ],
)
def test_a_bad_declaration_is_refused_when_the_class_is_made(make, reason):
    with pytest.raises(InvalidHandler, match=reason) as caught:
        make()
    assert isinstance(caught.value, CallboardError)


def test_an_undefined_name_is_refused_at_the_first_spawn(runtime):
    class Bad(Actor):
        @handler
        def go(self, msg: "NowhereToBeFound") -> None:  # noqa: F821
            ...

    with pytest.raises(InvalidHandler, match="NowhereToBeFound.*define or import"):
        runtime.start_actor(Bad)


def test_a_bad_handler_of_a_mixin_is_refused_at_the_first_spawn(runtime):
    class Mixin:
        @handler
        def go(self, msg): ...

    class Mixed(Mixin, Actor): ...

    with pytest.raises(InvalidHandler, match="annotate 'msg'"):
        runtime.start_actor(Mixed)


def test_a_handler_may_have_optional_parameters(runtime):
    class Optionals(Actor):
        @handler
        def go(self, msg: int, more: int = 2, *rest: int, **others: int) -> int:
            return msg + more

    assert runtime.start_actor(Optionals).ask(1).result(5) == 3


def test_a_wrapped_function_can_be_a_handler(runtime):
    def doubled(function):
        @functools.wraps(function)
        def wrapper(self, msg):
            return 2 * function(self, msg)

        return wrapper

    class Wrapped(Actor):
        @handler
        @doubled
        def go(self, msg: int) -> int:
            return msg

    assert runtime.start_actor(Wrapped).ask(4).result(5) == 8
