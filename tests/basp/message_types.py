"""Registered types that the tests send, and one registry that knows them."""

import enum
from collections import namedtuple
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from callboard.basp.registry import MessageRegistry

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Point:
    x: Any
    y: Any


@dataclass
class Box(Generic[T]):
    content: T
    label: str = "none"
    items: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Empty:
    pass


@dataclass
class Derived:
    base: int
    double: int = field(init=False)

    def __post_init__(self) -> None:
        self.double = 2 * self.base


class Pair(NamedTuple):
    left: Any
    right: Any = 7


Old = namedtuple("Old", ["a"])  # noqa: PYI024  (both kinds must work)


class Color(enum.Enum):
    RED = "r"
    GREEN = ("g", 2)
    ROT = "r"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Word(enum.StrEnum):
    YES = "yes"


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Mode(enum.IntFlag):
    A = 1
    B = 2


ALL_TYPES = (Point, Box, Empty, Derived, Pair, Old, Color, Level, Word, Access, Mode)


class Ref:
    def __init__(self, node: bytes, actor: int) -> None:
        self.pair = (node, actor)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ref) and other.pair == self.pair

    def __hash__(self) -> int:
        return hash(self.pair)


def make_registry() -> MessageRegistry:
    registry = MessageRegistry()
    for cls in ALL_TYPES:
        registry.register(cls.__name__.lower(), cls)
    return registry
