"""Our dataclasses are those of the standard library, but for when their methods are made."""

import copy
import dataclasses
import inspect
import itertools
import threading
from dataclasses import FrozenInstanceError, InitVar, dataclass, field
from typing import ClassVar

import pytest

from callboard.support.dataclass import awaited_fields
from callboard.support.dataclass import dataclass as late_dataclass

OPTIONS = [
    dict(zip(("frozen", "slots", "eq", "repr", "kw_only"), values, strict=True))
    for values in itertools.product((False, True), repeat=5)
]


def both(**options):
    """Make one class by each decorator."""
    made = []
    for decorator in (dataclass, late_dataclass):

        @decorator(**options)
        class Point:
            """A place."""

            kind: ClassVar[str] = "point"
            x: int
            y: float = 2.5
            names: list[str] = field(default_factory=list, compare=False)
            secret: str = field(default="s", repr=False)
            late: int = field(default=7, init=False)

            def __post_init__(self):
                object.__setattr__(self, "secret", self.secret.upper())

        made.append(Point)
    return made


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_with_all_options_it_is_the_same(options):
    theirs, ours = both(**options)

    assert inspect.signature(ours) == inspect.signature(theirs)
    assert ours.__match_args__ == theirs.__match_args__
    assert [f.name for f in dataclasses.fields(ours)] == ["x", "y", "names", "secret", "late"]
    one, other = theirs(x=1, names=["a"]), ours(x=1, names=["a"])
    assert dataclasses.asdict(one) == dataclasses.asdict(other)
    if options["repr"]:
        assert repr(one) == repr(other)
    same, different = ours(x=1), ours(x=2)
    assert (other == same) == (one == theirs(x=1))
    assert other != different
    assert other != one
    assert (ours.__hash__ is None) == (theirs.__hash__ is None)
    if options["eq"] and options["frozen"]:
        assert hash(other) == hash(one)
    assert copy.copy(other).names == ["a"]
    assert copy.deepcopy(other).x == 1
    assert dataclasses.replace(other, x=9).x == 9
    if options["frozen"]:
        with pytest.raises(FrozenInstanceError, match="cannot assign to field 'x'"):
            other.x = 2
        with pytest.raises(FrozenInstanceError, match="cannot delete field 'x'"):
            del other.x
    else:
        other.x = 2
        assert other.x == 2
    assert hasattr(other, "__dict__") != options["slots"]


def test_own_methods_stay():
    @late_dataclass(frozen=True)
    class Own:
        a: int

        def __repr__(self):
            return "own"

        def __eq__(self, other):
            return True

        __hash__ = object.__hash__

    assert repr(Own(1)) == "own"
    assert Own(1) == Own(2)
    assert Own.__hash__ is object.__hash__


def test_classes_derive_from_each_other_both_ways():
    @late_dataclass(frozen=True, slots=True)
    class Base:
        a: int

    @late_dataclass(frozen=True, slots=True)
    class Ours(Base):
        b: int = 2

    @dataclass(frozen=True)
    class Theirs(Base):
        b: int = 2

    class Plain(Base):
        __slots__ = ("extra",)

        def __init__(self, a):
            super().__init__(a)
            object.__setattr__(self, "extra", a + 1)

    assert (Ours(1).a, Ours(1).b, Theirs(1).a, Theirs(1).b) == (1, 2, 1, 2)
    assert Ours(1) == Ours(1) != Ours(1, 3)
    assert (Plain(1).a, Plain(1).extra) == (1, 2)
    with pytest.raises(FrozenInstanceError):
        Ours(1).b = 4
    with pytest.raises(FrozenInstanceError):
        Plain(1).a = 4
    with pytest.raises(TypeError, match="cannot inherit non-frozen"):

        @dataclass
        class Wrong(Base):
            c: int = 0


def test_rare_options_are_left_to_the_standard_library():
    @late_dataclass(order=True)
    class Ordered:
        a: int

    @late_dataclass
    class Initial:
        a: int
        b: InitVar[int]

        def __post_init__(self, b):
            self.a += b

    assert Ordered(1) < Ordered(2)
    assert Initial(1, 2).a == 3


@late_dataclass(frozen=True, slots=True)
class Kept:
    a: int
    b: str = ""


def test_a_frozen_slotted_one_can_be_copied():
    assert copy.copy(Kept(1, "x")) == copy.deepcopy(Kept(1, "x")) == Kept(1, "x")


def test_methods_are_generated_at_their_first_use():
    @late_dataclass
    class Waiting:
        a: int
        b: int = field(default=0, init=False)

    assert [f.name for f in awaited_fields(Waiting)] == ["a"]
    assert Waiting(1).b == 0
    assert awaited_fields(Waiting) is None
    assert inspect.isfunction(Waiting.__dict__["__init__"])
    assert not inspect.isfunction(Waiting.__dict__["__repr__"])


def test_threads_may_use_a_class_first_at_the_same_time():
    for _ in range(50):

        @late_dataclass(frozen=True, slots=True)
        class Shared:
            a: int

        made = []
        ready = threading.Barrier(4)

        def make(cls=Shared, made=made, ready=ready):
            ready.wait(20)
            made.append(cls(1))

        threads = [threading.Thread(target=make) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(made)) == 1
