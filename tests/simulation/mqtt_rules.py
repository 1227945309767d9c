"""Rules for lives of an MQTT router: exactly the promises of each QoS."""

from collections import Counter
from typing import TYPE_CHECKING

from callboard.mqtt.router.session import ConnectionStatus
from callboard.mqtt.wire.topic import matches, split_share
from tests.simulation.rules import Violation

if TYPE_CHECKING:
    from callboard.mqtt.router.machine import RouterMachine
    from tests.simulation.mqtt_client import Message, SimulatedClient
    from tests.simulation.mqtt_life import MqttLife


def check_always(life: "MqttLife") -> None:
    """Check the rules that hold after every step."""
    for client in life.everybody:
        if client.problems:
            raise Violation(client.problems[0])
    check_machine(life.machine)


def check_machine(machine: "RouterMachine") -> None:
    """Check a router's rules that hold after every step with any clients."""
    _check_accounts(machine)
    ready = Counter(map(id, machine.delivery.ready))
    if ready and max(ready.values()) > 1:
        raise Violation("a connection is in the ready queue twice")
    for connection in machine.sessions.connections.values():
        session = connection.session
        is_ready = session.status is ConnectionStatus.READY
        if is_ready != (id(connection) in ready):
            raise Violation(f"{session.client_id} is {session.status}, ready: {ready}")
        window = session.window
        used = len(window.inflight) + len(window.releasing)
        if window.inflight and used > max(window.size, len(window.releasing) + 1):
            raise Violation(f"{used} in flight to {session.client_id}, not {window.size}")
        for request in session.requests.values():
            places = (request in request.log.waiters) + (
                request.session is not None and request in request.session.tracker
            )
            idle = request.is_shared and machine.delivery.group_of(request).is_idle
            if places + idle != 1:
                raise Violation(f"a request of {session.client_id} is in {places} places")


def _check_accounts(machine: "RouterMachine") -> None:
    """Check that the counted weight of sessions and retained messages is correct."""
    sessions, retained = machine.sessions, machine.logs.retained
    held = 0
    for session in sessions:
        filters = (*session.subscriptions.values(), *session.leaving)
        weight = session.own + sum(each.weight for each in filters)
        if session.weight != weight:
            raise Violation(f"{session.client_id} counts {session.weight} B, and has {weight}")
        held += weight
    if machine.effects.held != held:
        raise Violation(f"sessions count {machine.effects.held} B, and have {held}")
    remote = sum(not each.link.is_local for each in sessions.connections.values())
    if sessions.remote != remote:
        raise Violation(f"{sessions.remote} clients are counted, and {remote} are here")
    limits, weight = machine.effects.limits, retained.weight
    if weight > limits.retained_bytes or len(retained) > limits.retained:
        raise Violation(f"{len(retained)} retained messages have {weight} B")
    least = sum(run.weight for run in retained)
    if weight < least:
        raise Violation(f"retained messages count {weight} B, and have at least {least}")


def check_at_the_end(life: "MqttLife") -> None:
    """Check the messages that each client received."""
    lost = _check_losses(life)
    life.wills.check(life.watcher)
    for client in life.clients:
        _check_messages(life, client, lost[client.name])
        _check_order(life, client, has_lost=bool(lost[client.name]))
    if not lost[""]:
        _check_group(life)
    _check_retained(life)
    for client in life.clients:
        session = life.machine.sessions.connections[client.name].session
        window = session.window
        if window.inflight or window.resend or window.releasing or session.received:
            raise Violation(f"something of {client.name} is still under way")


def _check_losses(life: "MqttLife") -> Counter[str]:
    """Check who lost something to retention; returns how much each client did at most."""
    may_lose = set()
    has_shelves = life.is_durable and bool(life.limits.journal_bytes)
    if life.has_small_logs and has_shelves:
        may_lose = {"", *(client.name for client in life.clients)}  # with QoS 0
    elif life.has_small_logs:
        is_hasty = life.limits.acknowledge_patience < 100
        may_lose = {
            client.name
            for client in life.clients
            if client.was_away or is_hasty or not life.qos_of[client.name]
        }
        if any(member.name in may_lose for member in life.members):
            may_lose.add("")
    lost: Counter[str] = Counter()
    for alert in life.alerts:
        lost[alert.client_id] += alert.lost
        if alert.client_id not in may_lose and not alert.client_id.startswith("rubbish"):
            raise Violation(f"{alert} though it was there")
    return Counter() if has_shelves else lost


def _counts(life: "MqttLife", client: "SimulatedClient") -> Counter[bytes]:
    """Return how often a client's session received each message, except retained ones."""
    return Counter(
        payload for tick, topic, payload, _ in client.taken if tick >= client.session.begun_at
    )


def _check_messages(life: "MqttLife", client: "SimulatedClient", lost: int) -> None:
    counts = _counts(life, client)
    granted = life.qos_of[client.name]
    in_group = client in life.members
    for message in life.messages:
        if message.retain or message.sent_at < 0:
            continue  # retained messages arrive again with each SUBSCRIBE
        qos = min(message.qos, granted)
        count = counts[message.payload]
        is_shared = in_group and matches(message.topic, "a/+")
        if qos and not count and _is_owed(client, message):
            lost -= 1
        if lost < 0:
            raise Violation(f"{client.name} did not get {message}, sent at {message.sent_at}")
        if 1 not in {qos, message.qos} and count > 1 and not is_shared:
            raise Violation(f"{client.name} got {message} {count} times with QoS {qos}")
        if count and not is_shared and not _may_be_wanted(client, message):
            raise Violation(f"{client.name} got {message}, which it never wanted")


def _is_owed(client: "SimulatedClient", message: "Message") -> bool:
    """Whether a filter held from before it was sent until the end."""
    return any(
        wish.confirmed_at is not None
        and wish.confirmed_at < message.sent_at
        and wish.ended_at is None
        and _matches(message.topic, wish.topic_filter)
        for wish in client.session.wishes
    )


def _may_be_wanted(client: "SimulatedClient", message: "Message") -> bool:
    return any(_matches(message.topic, wish.topic_filter) for wish in client.session.wishes)


def _matches(topic: str, topic_filter: str) -> bool:
    return not split_share(topic_filter)[0] and matches(topic, topic_filter)


def _check_order(life: "MqttLife", client: "SimulatedClient", *, has_lost: bool) -> None:
    """Check the order in which messages came first; a repetition may come later."""
    if client in life.members:
        return  # two subscriptions, each with its own order
    known = {message.payload: message for message in life.messages}
    last: dict[tuple[str, str], int] = {}
    seen: set[bytes] = set()
    for tick, _, payload, _ in client.taken:
        message = known.get(payload)
        if message is None or message.retain or payload in seen:
            continue
        if tick < client.session.begun_at or message.sent_at < 0:
            continue
        if message.qos == 1 and (
            has_lost or not life.qos_of[client.name] or not _is_owed(client, message)
        ):
            continue  # the first copy may not have come, and the publisher's second one is late
        seen.add(payload)
        key = (message.publisher, message.topic)
        if message.number < last.get(key, 0):
            raise Violation(f"{client.name} got {message} behind number {last[key]} at {tick}")
        last[key] = message.number


def _check_group(life: "MqttLife") -> None:
    """Check that exactly one member received each message of a shared subscription."""
    if not life.members:
        return
    confirmed = [
        wish.confirmed_at
        for member in life.members
        for wish in member.session.wishes
        if wish.topic_filter.startswith("$share")
    ]
    since = max(-1 if at is None else at for at in confirmed)
    counts = sum((_counts(life, member) for member in life.members), Counter[bytes]())
    for message in life.messages:
        if message.retain or message.sent_at <= since or not matches(message.topic, "a/+"):
            continue
        plain = [member for member in life.members if _may_be_wanted(member, message)]
        count = counts[message.payload]
        if message.qos and not count:
            raise Violation(f"no member got {message}")
        if message.qos == 2 and not plain and count > 1:
            raise Violation(f"members got {message} {count} times")


def _check_retained(life: "MqttLife") -> None:
    """Check that the last retained message of each publisher is the one that is kept."""
    last: dict[str, Message] = {}
    for message in life.messages:
        if message.retain and message.sent_at >= 0:
            last[message.topic] = message
    for topic, message in last.items():
        kept = life.machine.logs.retained.get(topic)
        possible = [
            each.payload
            for each in life.messages
            if each.topic == topic and each.number >= message.number
        ]
        if kept is None or kept.payloads[0] not in possible:
            raise Violation(f"{topic} keeps {kept and kept.payloads}, not {message}")
