"""The last message of a filter: the event *Shadow* of the architecture."""

from callboard.mqtt.codec import decode
from callboard.mqtt.framing import body_start
from callboard.mqtt.local_link import Message
from callboard.mqtt.machine import RouterMachine
from callboard.mqtt.message import Run
from callboard.mqtt.packet import V4, V5, Publish


def last_message(machine: RouterMachine, topic_filter: str) -> Message | None:
    """Return the last message of a filter's log; of a topic without one, what is retained.

    On the router's thread.
    """
    log = machine.routes.get(topic_filter)
    if log is not None and log.last is not None:
        return _message(log.last) if isinstance(log.last, Run) else _passed(*log.last)
    retained = machine.retained.match(topic_filter, machine.now)
    return _message(max(retained, key=lambda run: run.number)) if retained else None


def _passed(packets: bytes, size: int, is_v5: bool) -> Message:  # noqa: FBT001
    """Return the last of some packets."""
    packet = packets[-size:]
    publish = decode(packet[0], packet[body_start(packet) :], V5 if is_v5 else V4)
    assert isinstance(publish, Publish)
    return Message(publish.topic, publish.payload, publish.qos, publish.retain)


def _message(run: Run) -> Message:
    return Message(run.topic.decode(), run.payloads[-1], run.qos, run.retain)
