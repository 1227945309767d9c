"""What a node tells about its entities, as it happens."""

from callboard.support.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class EntityTypeHosted:
    """This node hosts a type of entities from now on.

    Attributes:
        type_name: of the entities.
        state: where their events are kept; "" for nowhere.
    """

    type_name: str
    state: str


@dataclass(frozen=True, slots=True)
class SlotsMoved:
    """Slots of a type came to this node, or went from it to others.

    Attributes:
        type_name: of the entities.
        gained: how many came.
        lost: how many went.
        owned: how many this node has now.
    """

    type_name: str
    gained: int
    lost: int
    owned: int


@dataclass(frozen=True, slots=True)
class SlotFenced:
    """Another node had taken a slot over when this one wanted to store or to answer.

    Attributes:
        type_name: of the entities.
        slot: its number.
        epoch: of the other node's claim.
        writer: names the other node's life; "" after a failover of the database.
    """

    type_name: str
    slot: int
    epoch: int
    writer: str
