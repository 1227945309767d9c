"""Journals of entities as topics."""

import time
from contextlib import suppress
from typing import Any, Final
from urllib.parse import quote

from callboard.endpoint.hub import Hub
from callboard.entity.journal.entry import Entry, raw_event
from callboard.entity.journal.journal import Journal
from callboard.entity.state.interface import StoredEvent
from callboard.kernel.errors import CallboardError
from callboard.lease.errors import OutcomeUnknown, StateUnavailable

#: Seconds that other nodes may take to say that they have what was published, and between
#: looks for that; they report ten times a second.
DELIVERY_LIMIT: Final = 10.0
_LOOK: Final = 0.01


def publish_journal(hub: Hub, journal: Journal, topic: str) -> int:
    """Publish the events of a journal until it ends; returns how many.

    Raises:
        Fenced: another journal with this reader was begun.
        StateUnavailable: the database is away, and the journal is not followed.
    """
    count = 0
    while events := journal.next_stored():
        lost = _lost(hub)
        hub.publish_batch(
            *[(f"{topic}/{quote(event.key, safe='')}", _data(event)) for event in events]
        )
        count += len(events)
        if journal.has_reader and _are_delivered(hub, lost):
            with suppress(StateUnavailable, OutcomeUnknown):  # later positions are stored
                journal.done()
    return count


def _data(event: StoredEvent) -> dict[str, Any]:
    """Return what is published of an event."""
    raw = raw_event(event)
    return {
        "position": event.position,
        "key": event.key,
        "number": event.number,
        "time": Entry.moment(event.time_ms),
        "epoch": event.epoch,
        "kind": event.kind,
        "version": event.version,
        "fields": raw.fields,
    }


def _lost(hub: Hub) -> int:
    """Return how many messages to other nodes were lost so far."""
    return sum(account.lost for account in hub.node.accounts().values())


def _are_delivered(hub: Hub, lost: int) -> bool:
    """Wait until what was published has come to all other nodes that subscribe.

    Args:
        hub: that published.
        lost: how many messages were lost before that.

    Returns:
        False if some of it was lost, or is still on its way: then it is published again by
        the next run.
    """
    try:
        hub.receivers_of("").result(DELIVERY_LIMIT)  # behind all that was published
    except CallboardError:
        return False
    before = hub.node.accounts()
    deadline = time.monotonic() + DELIVERY_LIMIT
    while time.monotonic() < deadline:
        now = hub.node.accounts()
        pairs = [(now[node], sent) for node, sent in before.items() if node in now]
        if all(each.confirmed + each.lost >= sent.sent for each, sent in pairs):
            return _lost(hub) == lost
        time.sleep(_LOOK)
    return False
