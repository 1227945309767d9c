"""What waited for the core's turn, put through it in order, in as few runs as that allows."""

from collections.abc import Iterator, Sequence
from typing import Final

from callboard.endpoint.core import Core
from callboard.endpoint.core_effect import Effect, Pair
from callboard.endpoint.core_order import BringIn, Order, SendCommands

__all__ = ["merged"]

_PAIRS: Final = {tuple}


def merged(
    core: Core, taken: Sequence[Pair | Order], here: bytes
) -> Iterator[Sequence[Effect]]:
    """Take data and orders as they came; yields the effects of each part before the next.

    Args:
        core: the core.
        taken: data as plain pairs, and orders among them.
        here: the id of this node.
    """
    if {*map(type, taken)} <= _PAIRS:  # nearly always
        if taken:
            yield core.data_inputs(taken)  # type: ignore[arg-type]  # the types were looked at
        return
    data: list[Pair] = []
    commands: list[Pair] = []
    for entry in taken:
        if isinstance(entry, tuple):
            data.append(entry)
        elif isinstance(entry, SendCommands) and entry.endpoint is None:
            commands.extend(entry.pairs)
        else:
            yield from _merged(core, data, commands)  # ordered behind what was before
            data, commands = [], []
            yield _sent(core, entry, here)
    yield from _merged(core, data, commands)


def _merged(core: Core, data: list[Pair], commands: list[Pair]) -> Iterator[Sequence[Effect]]:
    if data:
        yield core.data_inputs(data)
    if commands:
        yield core.command_inputs(commands)


def _sent(core: Core, order: Order, here: bytes) -> Sequence[Effect]:
    """Send to one endpoint, which may be this one, or what a door brought."""
    if isinstance(order, BringIn):
        return core.bring_in(order.pairs, order.bringer)
    if isinstance(order, SendCommands):
        assert order.endpoint is not None
        return core.commands_for(order.endpoint, order.pairs)
    if order.node == here:
        return core.deliver_here(order.kind, order.pairs)
    return core.send_to(order.node, order.kind, order.pairs)
