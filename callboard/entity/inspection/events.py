"""Events about the entities of a node, for `node.events()`."""

from callboard.support.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class EntityTypeHosted:
    """This node has started to host a type of entities.

    Attributes:
        type_name: the type name of the entities.
        state: the place of their events; "" for no state.
    """

    type_name: str
    state: str


@dataclass(frozen=True, slots=True)
class SlotsMoved:
    """This node has gained slots of a type, or lost slots to other nodes.

    Attributes:
        type_name: the type name of the entities.
        gained: number of slots gained.
        lost: number of slots lost.
        owned: number of slots that this node owns after it.
    """

    type_name: str
    gained: int
    lost: int
    owned: int


@dataclass(frozen=True, slots=True)
class SlotFenced:
    """This node wanted to commit or answer, but another node had claimed the slot.

    Attributes:
        type_name: the type name of the entities.
        slot: the number of the slot.
        epoch: the epoch of the other node's claim.
        writer: names the other node's life; "" after a failover of the database.
    """

    type_name: str
    slot: int
    epoch: int
    writer: str
