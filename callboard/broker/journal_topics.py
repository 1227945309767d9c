"""Publication of entity journals on topics."""

from contextlib import suppress
from typing import Any, Final
from urllib.parse import quote

from callboard.backoff import is_reached
from callboard.entity.journal.entry import Entry, raw_event
from callboard.entity.journal.journal import Journal
from callboard.entity.state.interface import StoredEvent
from callboard.kernel.errors import CallboardError
from callboard.lease.errors import OutcomeUnknown, StateUnavailable
from callboard.topics.hub import Hub

#: Timeout for other nodes' confirmations, and interval of the checks, in seconds; nodes confirm
#: ten times per second.
DELIVERY_LIMIT: Final = 10.0
_POLL_SECONDS: Final = 0.01


def publish_journal(hub: Hub, journal: Journal, topic: str) -> int:
    """Publish the events of a journal until it ends; return their number.

    Raises:
        Fenced: another journal with this reader was opened.
        StateUnavailable: the database is unavailable, and the journal is not followed.
    """
    count = 0
    while events := journal.next_stored():
        lost = _lost(hub)
        hub.publishing.publish_as(
            frozenset(),
            *[(f"{topic}/{quote(event.key, safe='')}", _data(event)) for event in events],
        )
        count += len(events)
        if journal.has_reader and _are_delivered(hub, lost):
            with suppress(StateUnavailable, OutcomeUnknown):  # a later position will be stored
                journal.done()
    return count


def _data(event: StoredEvent) -> dict[str, Any]:
    """Return the published value of an event."""
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
    """Return the number of messages to other nodes lost so far."""
    return sum(account.lost for account in hub.node.accounts().values())


def _are_delivered(hub: Hub, lost: int) -> bool:
    """Wait until all other subscribing nodes have the published messages.

    Args:
        hub: the publisher.
        lost: number of lost messages before the publication.

    Returns:
        False if some were lost, or are not confirmed yet; the next run then publishes them
            again.
    """
    try:
        hub.receivers_of("").result(DELIVERY_LIMIT)  # queued after all published messages
    except CallboardError:
        return False
    accounts_before = hub.node.accounts()

    def are_confirmed() -> bool:
        accounts_now = hub.node.accounts()
        pairs = [
            (accounts_now[node], earlier)
            for node, earlier in accounts_before.items()
            if node in accounts_now
        ]
        return all(
            account.confirmed + account.lost >= earlier.sent for account, earlier in pairs
        )

    return is_reached(are_confirmed, _POLL_SECONDS, DELIVERY_LIMIT) and _lost(hub) == lost
