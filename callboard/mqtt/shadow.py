"""The last message of a filter: the event *Shadow* of the architecture."""

from callboard.mqtt.local_link import Message
from callboard.mqtt.machine import RouterMachine
from callboard.mqtt.message import Run


def last_message(machine: RouterMachine, topic_filter: str) -> Message | None:
    """Return the last message of a filter's log; of a topic without one, what is retained.

    On the router's thread.
    """
    log = machine.routes.get(topic_filter)
    if log is not None and log.last is not None:
        return _message(log.last)
    retained = machine.retained.match(topic_filter, machine.now)
    return _message(max(retained, key=lambda run: run.number)) if retained else None


def _message(run: Run) -> Message:
    return Message(run.topic.decode(), run.payloads[-1], run.qos, run.retain)
