"""Actors of this node and of its BASP neighbors, as CAF nodes see them.

For CAF nodes, an actor of this node has the number that it has here. An actor of another
callboard node, an entity or a group gets an unused number of this node. The number is released
when the actor ends.
"""

import itertools
from typing import Final

from callboard.caf.stand_in import CafCell
from callboard.caf.wire.reader import CafActor, CafNode
from callboard.kernel.activation import Cell
from callboard.kernel.actors import ActorRef, Down
from callboard.kernel.context import NodeContext
from callboard.kernel.errors import CallboardError, MailboxFull
from callboard.kernel.topology import FIRST_ACTOR

#: First number of actors of other nodes; ours have 32 bits.
FIRST_ALIAS: Final = 1 << 33


class Exports:
    """The numbers under which CAF nodes know our actors.

    Attributes:
        limit: number of actors of other nodes that may have numbers at the same time.
    """

    def __init__(self, context: NodeContext, own: CafNode, limit: int) -> None:
        self._context, self._own, self.limit = context, own, limit
        self._numbers = itertools.count(FIRST_ALIAS)
        self._aliases: dict[ActorRef, int] = {}
        self._refs: dict[int, ActorRef] = {}

    def actor_of(self, ref: ActorRef) -> CafActor:
        """Return the address of an actor for CAF nodes. Can be called from any thread.

        Raises:
            MailboxFull: too many actors of other nodes have numbers here.
        """
        target = ref.target
        if isinstance(target, CafCell):
            return target.caf
        if isinstance(target, Cell):
            if ref.node_id == self._context.node_id:
                return CafActor(ref.actor_id, self._own)
            ref = self._context.ref_of(ref.node_id, ref.actor_id)  # of a node in this process
            target = ref.target
        number = self._aliases.get(ref)
        if number is None:
            if len(self._refs) >= self.limit:
                msg = f"CAF nodes know {self.limit:,} actors of other nodes, the limit"
                raise MailboxFull(msg)
            number = self._aliases.setdefault(ref, next(self._numbers))
            self._refs[number] = ref
            try:
                target.monitor(("caf alias", number), self._ended)
            except CallboardError:
                pass  # an entity never ends
        return CafActor(number, self._own)

    def _ended(self, down: Down) -> None:
        """Release the number of an actor that has ended."""
        number = self._aliases.pop(down.ref, None)
        if number is not None:
            self._refs.pop(number, None)

    def find(self, number: int) -> ActorRef | None:
        """Return the actor with a number; None if there is none."""
        if number >= FIRST_ALIAS:
            return self._refs.get(number)
        if number < FIRST_ACTOR:
            return None
        cell = self._context.contexts.get(number)
        if cell is None:
            return self._context.succession.successor(number)
        ref: ActorRef = cell.ref
        return ref

    def __len__(self) -> int:
        return len(self._refs)
