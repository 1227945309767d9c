"""The rules for every life, with their times."""

from collections import Counter

from callboard import CallboardError
from callboard.actors.errors import AskTimeout, NodeUnreachable
from tests.simulation.book import Ask, Book, Member, Target, Watch

SLACK = 0.1
"""Seconds by which an ask may end late: asks are looked at every 0.01 s of their node."""

UNDER_WAY = 0.01
"""Seconds that a message is under way at most, through all nodes, where nothing is wrong."""


CALM = 6.0
"""Seconds without any change of a link after which none is to be expected: a link that is dead
without knowing it is found so after three heartbeats, what was on an old path after 5 s."""


class Violation(AssertionError):
    """Something that must hold did not."""


def check_always(book: Book, now: float) -> None:
    """Check the rules that hold at every moment between two turns."""
    if book.errors:
        raise Violation(f"an error was logged: {book.errors[0]}")
    for member in book.alive():
        _check_links(member)
        _check_accounts(book, member)
    for watch in book.watches:
        if len(watch.downs) > 1:
            raise Violation(f"{watch}, more than once")
    for ask in book.asks:
        _check_time(ask, now)


def check_at_the_end(book: Book, now: float) -> None:
    """Check the rules that hold when the faults are over and everything is at rest."""
    check_always(book, now)
    for target in book.targets:
        _check_order(target)
        _check_end(target)
    for ask in book.asks:
        if ask.source.is_alive:
            _check_outcome(ask)
    for watch in book.watches:
        if watch.watcher.is_alive:
            _check_watch(book, watch)
    _check_node_watches(book)
    for member in book.alive():
        _check_late_answers(book, member)
    _check_refusals(book)
    _check_losses(book)


# --- links and accounts ---


def _check_links(member: Member) -> None:
    """At most one link is up between two nodes."""
    wires = member.node._broker.connector._wires.values()
    peers = Counter(wire.peer for wire in wires if wire.peer is not None and wire.is_open)
    for peer, count in peers.items():
        if count > 1:
            raise Violation(f"node {member.index} has {count} links with {peer.hex()}")


def _check_accounts(book: Book, member: Member) -> None:
    """Sent messages are confirmed, lost or in flight, and no unhandled message is confirmed."""
    for node_id, account in member.node.accounts().items():
        if min(account.in_flight, account.confirmed, account.lost) < 0:
            raise Violation(f"account of node {member.index}: {account}")
        for other in book.members:
            if other.node.node_id != node_id:
                continue
            epochs = other.node._broker.routes.accounts.arrivals.get(member.node.node_id, {})
            handled = sum(one.delivered + one.dead_letters for one in epochs.values())
            if account.confirmed > handled:
                raise Violation(
                    f"node {member.index} counts {account.confirmed} as confirmed by node "
                    f"{other.index}, which handled {handled}"
                )


def _check_refusals(book: Book) -> None:
    """No honest message is treated as forged, unless its source reports it as lost.

    A source that has given a node up no longer states the messages in flight to it (lives
    2098).
    """
    for member in book.members:
        refused = member.node._broker.unverified.dispatches
        accounts = [
            other.node.accounts().get(member.node.node_id)
            for other in book.members
            if other is not member and other.is_alive
        ]
        lost = sum(account.lost for account in accounts if account is not None)
        if refused > lost:
            raise Violation(
                f"node {member.index} refused {refused} messages of honest nodes, "
                f"{lost} are reported lost"
            )


def _check_losses(book: Book) -> None:
    """Each message arrived, became a dead letter, or is among those reported lost."""
    arrived = {
        (source, target.number, number)
        for target in book.targets
        for source, number in target.actor.arrived
    }
    refused = {letter for member in book.members for letter in member.dead_letters}
    both = arrived & refused
    if both:
        raise Violation(f"{min(both)} arrived and was a dead letter as well")
    missing: Counter[tuple[int, int]] = Counter()
    for (source, target), latest in book.numbers.items():
        host = book.targets[target].host.index
        missing[source, host] += sum(
            (source, target, number) not in arrived and (source, target, number) not in refused
            for number in range(1, latest + 1)
        )
    for (source, host), count in missing.items():
        _check_missing(book.members[source], book.members[host], count)


def _check_missing(source: Member, host: Member, count: int) -> None:
    if not source.is_alive or (source is host and count == 0):
        return
    account = source.node.accounts().get(host.node.node_id)
    lost = 0 if account is None else account.lost
    if count > lost:
        raise Violation(
            f"{count} messages of node {source.index} to node {host.index} are missing, "
            f"{lost} are reported lost"
        )


# --- messages and asks ---


def _check_order(target: Target) -> None:
    """Messages of a pair arrive in order, and none twice."""
    last: dict[int, int] = {}
    for source, number in target.actor.arrived:
        before = last.get(source, 0)
        if number <= before:
            raise Violation(
                f"probe {target.number}: {number} of node {source} came after {before}"
            )
        last[source] = number


def _check_time(ask: Ask, now: float) -> None:
    """An ask ends within its time, by the clock of the asking node, whatever happens."""
    if not ask.source.is_alive or ask.source.is_paused:
        return
    frozen = ask.source.paused_until(now) - ask.paused_before
    limit = ask.timeout / 0.95 + frozen + SLACK
    age = (ask.ends[0] if ask.ends else now) - ask.asked_at
    if age > limit:
        state = "took" if ask.ends else "hangs for"
        raise Violation(
            f"ask {ask.number} of node {ask.source.index} to probe {ask.target.number} {state} "
            f"{age:.3f} s, its limit is {limit:.3f} s"
        )


def _check_outcome(ask: Ask) -> None:
    """An ask ends once: with its own answer, or with an error that says why not."""
    name = f"ask {ask.number} of node {ask.source.index} to probe {ask.target.number}"
    if len(ask.ends) != 1:
        raise Violation(f"{name} ended {len(ask.ends)} times")
    error = ask.future.exception()
    if error is None:
        if ask.future.result() != ask.number:
            raise Violation(f"{name} was answered with {ask.future.result()!r}")
    elif not isinstance(error, CallboardError):
        raise Violation(f"{name} failed with {error!r}")


def _check_late_answers(book: Book, member: Member) -> None:
    """An answer comes late only for an ask that had failed: no ask is answered twice."""
    own = sum(
        isinstance(ask.future.exception(), AskTimeout | NodeUnreachable)
        for ask in book.asks
        if ask.source is member and ask.ends
    )
    # Asks that a node sends itself: for the name of each node that it finds, again after a
    # loss.
    described = len(member.lost) + len(book.members)
    late = member.node.runtime.counters.late_answers
    if late > own + described:
        raise Violation(
            f"node {member.index} got {late} answers more than it had open asks; only {own} of "
            "its asks had failed"
        )


def check_answered(asks: list[Ask]) -> None:
    """After the last fault every actor answers every node."""
    for ask in asks:
        error = ask.future.exception() if ask.ends else "nothing"
        if error is not None:
            raise Violation(
                f"after the last fault, probe {ask.target.number} on node "
                f"{ask.target.host.index} answers node {ask.source.index} with {error!r}"
            )


# --- monitors ---


def _check_end(target: Target) -> None:
    """An actor ends for a reason that it was told, and only then."""
    if target.ended is not None and target.ended[1] not in target.told:
        raise Violation(
            f"probe {target.number} ended with {target.ended[1]}, told was {target.told}"
        )


def _check_watch(book: Book, watch: Watch) -> None:
    """A monitor fires when its actor ended or was lost, once, with the right reason."""
    if not watch.downs:
        if watch.target.ended is not None:
            raise Violation(f"{watch}; its actor ended at {watch.target.ended}")
        if not watch.target.host.is_alive:
            raise Violation(f"{watch}; its node is dead")
        if any(when > watch.since for when in _losses(watch)):
            raise Violation(f"{watch}; its node was lost at {_losses(watch)}")
        return
    when, down = watch.downs[0]
    allowed = allowed_reasons(book, watch, when)
    if str(down.reason) not in allowed:
        raise Violation(f"{watch}; allowed is {' or '.join(sorted(allowed)) or 'nothing'}")


def _losses(watch: Watch) -> list[float]:
    """When the watcher's node told that it lost the path to the target's."""
    node_id = watch.target.host.node.node_id
    return [when for when, lost in watch.watcher.lost if lost == node_id]


def allowed_reasons(book: Book, watch: Watch, when: float) -> set[str]:
    """Return for which reasons a monitor may fire at a time.

    - On its own node: the reason, or `not_found` if it had ended before.
    - Elsewhere `unreachable` exactly when the watcher's node loses the path at that moment, or
      had none when the monitor was set.
    - The reason, when the actor ended after the monitor was set. `not_found` as well, if the
      announce of the proxy was still under way then, or faults can have changed the path: then
      proxies are announced again, and the answer may be faster than the down told again.
    - `not_found`, when it had ended before. The reason as well, if the down for an earlier
      proxy of the same node was still under way, or faults can have held it up.
    """
    target, end = watch.target, watch.target.ended
    allowed: set[str] = set()
    is_local = watch.watcher is target.host
    if not is_local and (watch.had_no_path or when in _losses(watch)):
        allowed.add("unreachable")
    if end is None or when < end[0]:
        return allowed
    is_race = watch.since == end[0]
    if not is_local:
        is_race = abs(watch.since - end[0]) <= UNDER_WAY or book.was_disturbed(0.0, when)
    if watch.since <= end[0] or is_race:
        allowed.add(end[1])
    if watch.since > end[0] or is_race:
        allowed.add("not_found")
    return allowed


def _check_node_watches(book: Book) -> None:
    """A monitor of a node fires when the node is lost, and only then."""
    for watch in book.node_watches:
        if not watch.watcher.is_alive:
            continue
        node_id = watch.watched.node.node_id
        is_lost = not watch.watched.is_alive or any(
            lost == node_id and when > watch.since for when, lost in watch.watcher.lost
        )
        name = f"monitor of node {watch.watched.index} by node {watch.watcher.index}"
        if is_lost and not watch.future.done():
            raise Violation(f"{name} never fired")
        if watch.future.done() and watch.future.result().node_id != node_id:
            raise Violation(f"{name} told of another node")


# --- liveness ---


def is_at_rest(book: Book, now: float) -> bool:
    """Return True when everything in reach is linked and nothing is under way any more."""
    return not _unrest(book, now)


def fail_unrest(book: Book, now: float, seconds: float) -> None:
    """Return the parts that are not at rest."""
    raise Violation(f"{seconds:g} s after the last fault: {_unrest(book, now)}")


def _unrest(book: Book, now: float) -> str:
    since = max([book.last_change, *book.disturbed[-1:]])
    if now - since < CALM:
        return f"{now - since:.3f} s after the latest change of a link or the last fault"
    for ask in book.asks:
        if ask.source.is_alive and not ask.ends:
            return f"ask {ask.number} of node {ask.source.index} is open"
    for member in book.alive():
        reached = {found.node_id for found in member.node.nodes()}
        alive = {other.node.node_id for other in book.alive()}
        if reached - alive:
            return f"node {member.index} reaches {len(reached - alive)} nodes that are dead"
        for other in _component(book, member):
            if other is not member and other.node.node_id not in reached:
                return f"node {member.index} does not reach node {other.index}"
        for account in member.node.accounts().values():
            if account.in_flight:
                return f"messages of node {member.index} are in flight: {account}"
    return ""


def _component(book: Book, member: Member) -> list[Member]:
    """Return the living nodes that the kept links join with one of them."""
    by_slot = {one.slot: one for one in book.alive()}
    edges = [
        (book.members[dialer], by_slot[slot])
        for dialer, slot in book.kept
        if book.members[dialer].is_alive and slot in by_slot
    ]
    found = [member]
    for one in found:
        for pair in edges:
            if one in pair:
                found += [other for other in pair if other not in found]
    return found
