"""Histories of a register that keeps its promise, as events that any checker can be given."""

import random
from typing import NamedTuple


class Event(NamedTuple):
    """A begin or an end of an operation, in the order of the clients' clock.

    Attributes:
        number: of the operation.
        client: who does it; it has one operation at a time.
        key: on what.
        name: `read` or `write`.
        value: what is written.
        outcome: `begin`, `answered` or `unknown`.
        answer: what a read saw.
    """

    number: int
    client: int
    key: int
    name: str
    value: int | None
    outcome: str
    answer: int | None = None


def register_events(operations: int, keys: int, clients: int, unknown: int) -> list[Event]:
    """Return the events of a history; equal arguments give the same history.

    Each operation takes effect at a moment between its start and its end. Half of the
    operations that end without an answer took effect; their clients continue.
    """
    chance = random.Random(operations)
    lost = set(chance.sample(range(operations), unknown))
    state: dict[int, int | None] = dict.fromkeys(range(keys))
    events: list[Event] = []
    under_way: dict[int, tuple[Event, list[int | None]]] = {}
    begun = 0
    while begun < operations or under_way:
        client = chance.randrange(clients)
        if client not in under_way:
            if begun < operations:
                is_write = begun in lost or chance.random() < 0.5
                key, name = chance.randrange(keys), "write" if is_write else "read"
                value = begun if is_write else None
                event = Event(begun, client, key, name, value, "begin")
                under_way[client] = (event, [])
                events.append(event)
                begun += 1
            continue
        event, seen = under_way[client]
        if not seen:  # its moment
            if event.name == "write" and (event.number not in lost or chance.random() < 0.5):
                state[event.key] = event.value
            seen.append(state[event.key] if event.name == "read" else None)
            continue
        outcome = "unknown" if event.number in lost else "answered"
        events.append(event._replace(outcome=outcome, answer=seen[0]))
        del under_way[client]
    return events
