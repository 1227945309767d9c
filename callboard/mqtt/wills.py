"""Wills: what the router publishes for clients that are gone without a DISCONNECT.

A router with a journal writes each will down as soon as the client is connected. The standards
let a server that failed publish wills when it runs again (MQTT 5, 3.1.2.5): for a client that
was connected then, the delay begins with the restart; a will that waited keeps its time.
"""

from typing import TYPE_CHECKING, Final

from callboard.mqtt.connection import Connection
from callboard.mqtt.message import Run
from callboard.mqtt.packet import Will
from callboard.mqtt.properties import Properties
from callboard.mqtt.publishing import is_allowed, passed_on
from callboard.mqtt.record import WillDropped, WillKept

if TYPE_CHECKING:
    from callboard.mqtt.machine import RouterMachine

_NONE: Final = Properties()


def keep(machine: "RouterMachine", connection: Connection) -> None:
    """Write a will down: its client is connected."""
    will = connection.will
    if will is not None and machine.is_durable and _may_be_said(machine, connection, will):
        machine.records.append(WillKept(connection.client_id, will, None))


def end(machine: "RouterMachine", connection: Connection, *, has_will: bool) -> None:
    """Let a will wait, publish it or forget it: its client is gone."""
    will, client_id = connection.will, connection.client_id
    if will is None:
        return
    if has_will and not _may_be_said(machine, connection, will):
        machine.meters.refused += 1
        has_will = False
    delay = _delay(will, connection.session.expiry)
    if not has_will:
        _drop(machine, client_id)
    elif delay <= 0:
        _publish(machine, client_id, will)
    else:
        wait(machine, client_id, will, machine.now + delay)


def wait(machine: "RouterMachine", client_id: str, will: Will, when: float) -> None:
    """Let a will wait for its time."""
    machine.wills[client_id] = (when, will)
    machine.arm(when, client_id)
    if machine.is_durable:
        machine.records.append(WillKept(client_id, will, when))


def cancel(machine: "RouterMachine", client_id: str) -> None:
    """Forget a will that waits: its client is back."""
    if machine.wills.pop(client_id, None) is not None:
        _drop(machine, client_id)


def publish_waiting(machine: "RouterMachine", client_id: str) -> None:
    """Publish a will that waits, if there is one."""
    waiting = machine.wills.pop(client_id, None)
    if waiting is not None:
        _publish(machine, client_id, waiting[1])


def restore(machine: "RouterMachine", saved: dict[str, tuple[Will, float | None]]) -> None:
    """Let the wills of a router that ended wait again."""
    for client_id, (will, when) in saved.items():
        if when is None:
            session = machine.graveyard.get(client_id)
            when = machine.now + _delay(will, 0.0 if session is None else session.expiry)
        wait(machine, client_id, will, when)


def records(machine: "RouterMachine") -> list[WillKept]:
    """Return all wills there are, for a snapshot."""
    found = [
        WillKept(client_id, connection.will, None)
        for client_id, connection in machine.connections.items()
        if connection.will is not None and _may_be_said(machine, connection, connection.will)
    ]
    return found + [WillKept(name, will, when) for name, (when, will) in machine.wills.items()]


def _may_be_said(machine: "RouterMachine", connection: Connection, will: Will) -> bool:
    topic = will.topic.encode()
    return is_allowed(connection, topic, machine.route_of(topic))


def _delay(will: Will, session_expiry: float) -> float:
    asked = (will.properties or _NONE).will_delay_interval or 0
    return min(float(asked), session_expiry)


def _drop(machine: "RouterMachine", client_id: str) -> None:
    if machine.is_durable:
        machine.records.append(WillDropped(client_id))


def _publish(machine: "RouterMachine", client_id: str, will: Will) -> None:
    passed = passed_on(will.properties or _NONE)
    topic = will.topic.encode()
    run = Run.of_payloads(
        topic,
        [will.payload],
        qos=will.qos,
        publisher=client_id,
        properties=passed.properties,
        retain=will.retain,
        expires_at=None if passed.expiry is None else machine.now + passed.expiry,
    )
    machine.meters.wills += 1
    machine.append(run, machine.route_of(topic))
    _drop(machine, client_id)  # behind the message, so that a crash loses neither
