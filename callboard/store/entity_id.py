"""Who sends or receives commands: one store frontend on one endpoint."""

from dataclasses import dataclass
from typing import Final
from uuid import UUID

__all__ = ["NIL", "EntityId"]

_OBJECT_MAX: Final = 2**64 - 1


@dataclass(frozen=True, slots=True, order=True)
class EntityId:
    """An endpoint's UUID and a number that is unique in its life.

    Raises:
        OverflowError: the number has more than 64 bits.
    """

    endpoint: UUID
    object: int

    def __post_init__(self) -> None:
        if not 0 <= self.object <= _OBJECT_MAX:
            msg = f"object number {self.object} of an entity is outside 0 to 2**64 - 1"
            raise OverflowError(msg)

    def __bool__(self) -> bool:
        return self != NIL

    def __str__(self) -> str:
        return f"{self.object}@{self.endpoint}" if self else "none"


#: Nobody in particular: a command with this receiver is for all.
NIL: Final = EntityId(UUID(int=0), 0)
