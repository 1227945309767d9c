"""Answers to `Thespian_StatusReq`, from an actor and from the system."""

from typing import TYPE_CHECKING, Any

from thespian.system.messages.status import Thespian_ActorStatus, Thespian_SystemStatus

if TYPE_CHECKING:
    from actors.thespian.cell import PlainCell
    from actors.thespian.system import SystemBase


def actor_status(cell: "PlainCell") -> Any:
    """Return what Thespian's tools show of an actor."""
    runtime = cell.runtime
    parent = cell.parent.ref if cell.parent is not None else runtime.thespian.address
    status = Thespian_ActorStatus(
        cell.ref,
        type(cell.actor).__name__,
        runtime.thespian.address,
        parent,
        sourceHash=cell.creation.source_hash,
        exiting=True if cell.exiting else None,
    )
    for child in cell.children or ():
        if child.alive:
            status.addChild(child.ref)
    for abroad in cell.abroad or ():
        status.addChild(abroad)
    status.addWakeups([(cell.ref, timer) for timer in list((cell.wakeups or {}).values())])
    status.addReceived(cell.handled)
    status.addKeyVal("mailbox", cell.depth)
    return status


def system_status(system: "SystemBase") -> Any:
    """Return what Thespian's tools show of a system."""
    runtime = system.runtime
    neighbors = system.neighbors
    status = Thespian_SystemStatus(
        system.address, neighbors.leader, dict(system.capabilities), runtime.closed
    )
    for cell in list(runtime.cells.values()):
        if cell.parent is None and cell.actor is not None:
            status.addChild(cell.ref)
    for address in neighbors.known():
        status.addConventioneer(address, "while linked")
    for name, address in system.names.held().items():
        status.addGlobalActor(name, address)
    status.setDeadLetterHandler(system.dead_letters)
    status.setNotifyHandlers(neighbors.told())
    status.sourceAuthority = system.sources.authority
    status.loadedSources = [(each, "") for each in system.sources.loaded()]
    status.addReceived(runtime.handled)
    return status
