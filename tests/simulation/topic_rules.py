"""Rules for a life of topics."""

from callboard.topics.machine.status import SC
from tests.simulation.rules import Violation
from tests.simulation.topic_book import Place, Published, Taker, TopicBook

CALM = 8.0
"""Seconds without a change after which paths and filters are the same everywhere."""

SETTLED = 4.0
"""Seconds in which a message arrives when nothing changes."""


def check_always(book: TopicBook) -> None:
    """Check the rules that hold at every moment."""
    for place in book.alive():
        peers = [link.peer for link in place.node.links()]
        if len(peers) != len(set(peers)):
            raise Violation(f"endpoint {place.index} has two links with one node")
    if book.errors:
        raise Violation(f"an error was logged: {book.errors[0]}")


def check_at_the_end(book: TopicBook) -> None:
    """Check the whole life."""
    check_always(book)
    _check_what_came(book)
    _check_arrivals(book)
    for place in book.places:
        _check_events(place)
    for place in book.alive():
        _check_rest(book, place)


def _check_what_came(book: TopicBook) -> None:
    """Messages arrive in order, at most once, only on requested topics, and only at their
    targets."""
    sent = {(message.publisher, message.number): message for message in book.published}
    for taker in book.takers:
        last: dict[int, int] = {}
        for topic, (publisher, number) in taker.got:
            what = f"{number} of {publisher} on {topic}"
            where = f"at a subscriber of {taker.place.index}"
            message = sent[publisher, number]
            if message.target not in (None, taker.place.index):
                raise Violation(f"{what}, for {message.target}, arrived {where}")
            if not taker.wants(topic) or topic != message.topic:
                raise Violation(f"{what} arrived {where}, who wants {sorted(taker.topics)}")
            if number <= last.get(publisher, 0):
                raise Violation(f"{what} came after {last[publisher]} {where}")
            last[publisher] = number


def _check_arrivals(book: TopicBook) -> None:
    """A message in calm times reached exactly its intended receivers."""
    changes = sorted(book.changes)
    got = [
        {(publisher, number) for _, (publisher, number) in taker.got} for taker in book.takers
    ]
    for message in book.published:
        if not message.is_calm or any(
            message.at - CALM < at < message.at + SETTLED for at in changes
        ):
            continue
        for taker, received in zip(book.takers, got, strict=True):
            is_there = taker.since < message.at and taker.until > message.at + SETTLED
            if not is_there or not taker.wants(message.topic):
                continue
            has_arrived = (message.publisher, message.number) in received
            is_due = _is_due(message, taker)
            if is_due is not None and is_due != has_arrived:
                verb = "did not arrive" if is_due else "must not arrive, but did"
                raise Violation(f"{message} {verb} at {taker.place.index}")


def _is_due(message: Published, taker: Taker) -> bool | None:
    """Return whether a message has to arrive; None where it may or may not."""
    place = taker.place.index
    if message.target is not None:
        # Directed ones are for every subscriber there, and no TTL holds them back.
        return (
            None
            if place not in message.far and place != message.publisher
            else (place == message.target)
        )
    if place == message.publisher:
        return taker.sees_own
    return None if place in message.near else place in message.far


def _check_events(place: Place) -> None:
    """Endpoints are discovered, connected, disconnected and lost in turn."""
    found: set[bytes | None] = set()
    peers: set[bytes | None] = set()
    for event in place.events:
        who = event.endpoint
        is_right = {
            SC.EndpointDiscovered: who not in found,
            SC.EndpointUnreachable: who in found and who not in peers,
            SC.PeerAdded: who in found and who not in peers,
            SC.PeerLost: who in peers,
            SC.PeerRemoved: who in peers,
        }[event.kind]
        if who is None or not is_right:
            raise Violation(f"{place.index} was told {event} out of turn")
        match event.kind:
            case SC.EndpointDiscovered:
                found.add(who)
            case SC.EndpointUnreachable:
                found.discard(who)
            case SC.PeerAdded:
                peers.add(who)
            case _:
                peers.discard(who)


def _check_rest(book: TopicBook, place: Place) -> None:
    """At the end, every endpoint knows the filters of all others, and nothing else."""
    own = {
        topic
        for taker in book.takers
        if taker.place is place and taker.until == float("inf")
        for topic in taker.topics
    }
    core, index = place.core, place.index
    if core.filters.topics != own:
        raise Violation(f"the filter of {index} is {core.filters.topics}, not {own}")
    others = {other.node.node_id: other for other in book.alive() if other is not place}
    if core.filters.remotes.keys() != others.keys():
        raise Violation(
            f"{index} knows {len(core.filters.remotes)} filters of {len(others)} endpoints"
        )
    for node_id, other in others.items():
        known, there = core.filters.remotes[node_id].topics, other.core.filters.topics
        if known != there:
            raise Violation(f"{index} takes the filter of {other.index} for {known}: {there}")
    found = _still(place, SC.EndpointDiscovered, SC.EndpointUnreachable)
    if found != {other.hub.endpoint_id for other in others.values()}:
        raise Violation(f"{index} was told of {len(found)} endpoints, not of {len(others)}")
    delivered = sum(len(taker.got) for taker in book.takers if taker.place is place)
    if core.counters.delivered != delivered:
        raise Violation(f"{index} counts {core.counters.delivered}, {delivered} were delivered")


def _still(place: Place, begin: SC, end: SC) -> set[bytes | None]:
    found: set[bytes | None] = set()
    for event in place.events:
        if event.kind is begin:
            found.add(event.endpoint)
        elif event.kind is end:
            found.discard(event.endpoint)
    return found
