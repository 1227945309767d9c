"""Sessions: CONNECT, the end of a connection, and the end of a session.

The session of a disconnected client is in the graveyard until it expires. Deadlines of sessions
and wills are stored by client id. When one is reached, everything that is due for the client is
done.
"""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Final

from callboard.mqtt.router import record
from callboard.mqtt.router.delivery import Delivery
from callboard.mqtt.router.effects import Effects
from callboard.mqtt.router.ingress import Ingress
from callboard.mqtt.router.limits import DuplicateClientId
from callboard.mqtt.router.link import Disconnected, LinkEnding, RouterLink
from callboard.mqtt.router.logs import Logs
from callboard.mqtt.router.message import PACKET_IDS, MessageRun, passed_on
from callboard.mqtt.router.session import (
    RECEIVED_BYTES,
    SESSION_BYTES,
    Cause,
    Connection,
    ConnectionStatus,
    DataRequest,
    History,
    Session,
)
from callboard.mqtt.router.subscribing import Subscriptions
from callboard.mqtt.router.wills import Wills
from callboard.mqtt.wire.codec import encode, encode_refusal
from callboard.mqtt.wire.packet import V4, V5, ConnAck, Disconnect, Will
from callboard.mqtt.wire.packet import Connect as ConnectPacket
from callboard.mqtt.wire.properties import NO_PROPERTIES, Properties
from callboard.mqtt.wire.reason_code import DISCONNECT_CODES, ReasonCode
from callboard.mqtt.wire.topic import is_valid_topic
from callboard.support.dataclass import dataclass

#: Module constants, because every new client needs them.
_CAUGHT_UP: Final = ConnectionStatus.CAUGHT_UP
_REFUSE: Final = DuplicateClientId.REFUSE

#: The session expiry interval that means "never".
NEVER: Final = 0xFFFF_FFFF

#: Bytes of messages that may be appended between two counts of the messages in memory.
SLACK: Final = 8 << 20

#: Obsolete deadlines, of clients that reconnected, that the heap may hold before it is rebuilt.
SPARE: Final = 10_000

#: Clients without a session whose history is still shown.
KEPT = 1_000


@dataclass(eq=False, repr=False)
class Sessions:
    """The sessions of a router, with and without their clients.

    Attributes:
        connections: the connections by client id.
        by_link: the same, by the link that packets arrive on.
        graveyard: sessions of disconnected clients, by client id.
        wills: the wills of clients.
        adopted: offers of sessions that were copied from other routers, by client id.
        handed: sessions that went to other routers, by client id.
        remote: connections over a network; local ones do not count for the limit.
        look_at: how many bytes logs may have appended in total before `make_room` is due.
        deadlines: a heap of times at which something is due for a client; see `arm`.
        make_stamp: gives each connect a greater number than all earlier ones in the cluster.
    """

    _logs: Logs
    _delivery: Delivery
    _subscriptions: Subscriptions
    _ingress: Ingress
    _effects: Effects
    _make_client_id: Callable[[], str]
    make_stamp: Callable[[], int]
    by_link: dict[RouterLink, Connection] = field(default_factory=dict)
    graveyard: dict[str, Session] = field(default_factory=dict)
    adopted: dict[str, str] = field(default_factory=dict)
    handed: dict[str, record.HandedOver] = field(default_factory=dict)
    remote: int = 0
    look_at: int = SLACK
    deadlines: list[tuple[float, int, str]] = field(default_factory=list)
    #: Histories of clients whose sessions are over; the oldest are dropped first.
    _histories: dict[str, History] = field(default_factory=dict)
    _armed: int = 0

    def __post_init__(self) -> None:
        self.connections = self._delivery.connections
        self.wills = Wills(self._logs, self._effects)

    def get(self, client_id: str) -> Session | None:
        """Return the session of a client, connected or not."""
        connection = self.connections.get(client_id)
        return self.graveyard.get(client_id) if connection is None else connection.session

    def caught_up(self, client_id: str) -> Session | None:
        """Return the session of a client, after processing everything it has sent."""
        if (connection := self.connections.get(client_id)) is not None:
            self.catch_up(connection)
        return self.get(client_id)

    def __iter__(self) -> Iterator[Session]:
        """Iterate over all sessions, first the ones of connected clients."""
        yield from [connection.session for connection in self.connections.values()]
        yield from self.graveyard.values()

    # --- CONNECT ---

    def connect(self, link: RouterLink) -> None:
        """Open a client's session, or refuse the CONNECT."""
        packet, effects = link.connect, self._effects
        requested = _weight_of(packet), _wanted_expiry(packet)
        if not self._is_plain(packet, requested[0]):
            refusal = self._judge(packet, link)
            if refusal is None and not link.is_local:
                refusal = self._lacks_room(packet, *requested)
            if refusal is not None:
                self._refuse(link, refusal)
                return
        client_id = packet.client_id or self._make_client_id()
        old = self.connections.get(client_id)
        if old is not None and not self.catch_up(old):
            effects.meters.taken_over += 1
            self.disconnect(old, LinkEnding(ReasonCode.SESSION_TAKEN_OVER, has_will=True))
        session = self.graveyard.pop(client_id, None)
        if session is not None and packet.clean_start:
            self.end(session)
            session = None
        if self.wills.waiting:
            self.wills.cancel(client_id)  # the delayed will of a session that continues
        is_present = session is not None
        if session is None:
            session = Session(client_id)
            session.history = self._histories.pop(client_id, ())
        else:
            session.expires_at = session.offer = None
        connection = self._begin(link, session, *requested)
        connection.out.append(self._connack(connection, packet, is_present=is_present))
        self._delivery.touched.append(connection)
        if not is_present:
            session.status = _CAUGHT_UP  # a new session has nothing to read
            return
        session.status = ConnectionStatus.BUSY
        for packet_id in session.window.releasing:
            connection.out.append(b"\x62\x02" + PACKET_IDS[packet_id])
        self._delivery.schedule(session, Cause.INIT)

    def _begin(
        self, link: RouterLink, session: Session, weight: int, expiry: float
    ) -> Connection:
        """Attach a client to its session."""
        effects, client_id = self._effects, session.client_id
        connection = session.connection = Connection(link, session, effects.limits)
        if not link.is_local:
            self.remote += 1
            session.stamp = self.make_stamp()
        if link.user is not None:
            session.user = link.user
        most = effects.limits.inflight
        requested = (link.connect.properties or NO_PROPERTIES).receive_maximum or most
        # A bridge has the window that its link with the other broker needs.
        session.open_window(requested if link.is_local else min(most, requested))
        session.set_own(effects, weight)
        self.connections[client_id] = self.by_link[link] = connection
        link.client_id = client_id
        effects.meters.connects += 1
        session.record_event(effects.now, "connected")
        if expiry or session.expiry:
            self.set_expiry(session, expiry)
        if effects.is_durable:
            self.wills.keep(connection)
        return connection

    def _judge(self, packet: ConnectPacket, link: RouterLink) -> ReasonCode | None:
        """Return the reason to refuse a client a session; None to grant it."""
        is_nameless = not packet.client_id and packet.version < V5 and not packet.clean_start
        if is_nameless or len(packet.client_id) > self._effects.limits.client_id_length:
            return ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
        if not packet.client_id and not self._effects.limits.zero_length_client_ids:
            return ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
        if packet.will is not None:
            refusal = self._judge_will(packet.will, link.maximum_qos)
            if refusal is not None:
                return refusal
        connection = self.connections.get(packet.client_id)
        if connection is not None and connection.session.user != link.user:
            self.catch_up(connection)  # it may have sent its DISCONNECT
        if not self.permits(packet.client_id, link.user):
            return ReasonCode.NOT_AUTHORIZED
        return None

    def _judge_will(self, will: Will, maximum_qos: int) -> ReasonCode | None:
        """Return the reason to refuse a client because of its will; None for a valid will."""
        limits = self._effects.limits
        if not is_valid_topic(will.topic):
            return ReasonCode.TOPIC_NAME_INVALID
        if will.qos > min(limits.maximum_qos, maximum_qos):
            return ReasonCode.QOS_NOT_SUPPORTED
        if will.retain and not limits.retain_available:
            return ReasonCode.RETAIN_NOT_SUPPORTED
        return None

    def permits(self, client_id: str, user: str | None) -> bool:
        """Return whether a user may open the session of a client id, or create it."""
        if user is None or self._effects.limits.duplicate_client_id is not _REFUSE:
            return True
        session = self.get(client_id)
        if session is None or session.user == user:
            return True
        connection = session.connection
        is_ours = connection is not None and connection.link.is_local
        if session.user is None and not is_ours:
            return True
        session.record_event(self._effects.now, "another user was refused")
        return False

    def _is_plain(self, packet: ConnectPacket, weight: int) -> bool:
        """Return whether a client is new, has no will, and is within all limits."""
        limits, graveyard, name = self._effects.limits, self.graveyard, packet.client_id
        return (
            0 < len(name) <= limits.client_id_length
            and packet.will is None
            and name not in self.connections
            and name not in graveyard
            and self.remote < limits.connections
            and len(self.connections) + len(graveyard) < limits.sessions
            and self._effects.held + weight <= limits.sessions_bytes
            and weight <= limits.subscription_bytes
        )

    def _lacks_room(
        self, packet: ConnectPacket, weight: int, expiry: float
    ) -> ReasonCode | None:
        """Return the reason if there is no room for a remote client; None if there is."""
        limits, session = self._effects.limits, self.get(packet.client_id)
        if self.remote >= limits.connections and packet.client_id not in self.connections:
            return ReasonCode.QUOTA_EXCEEDED
        is_lasting = session is None and expiry > 0
        is_one_more = len(self.connections) + len(self.graveyard) >= limits.sessions
        kept_weight = (
            0 if session is None or packet.clean_start else session.weight - session.own
        )
        more = weight if session is None else weight - session.own
        if (
            (is_lasting and is_one_more)
            or kept_weight + weight > limits.subscription_bytes
            or (more > 0 and self._effects.held + more > limits.sessions_bytes)
        ):
            self._effects.meters.over_quota += 1
            return ReasonCode.QUOTA_EXCEEDED
        return None

    def _refuse(self, link: RouterLink, reason: ReasonCode) -> None:
        """Answer a CONNECT with a refusal."""
        self._effects.meters.refused_connects += 1
        answer = encode_refusal(link.connect.version, reason)
        self._effects.transmits.append((link, [answer, Disconnected(reason, "refused")]))

    def _connack(
        self, connection: Connection, packet: ConnectPacket, *, is_present: bool
    ) -> bytes:
        """Return the CONNACK that grants a session."""
        if not connection.is_v5:
            # The first byte is reserved in MQTT 3.1.
            return bytes((0x20, 2, is_present and packet.version >= V4, 0))
        limits, session = self._effects.limits, connection.session
        requested = packet.properties or NO_PROPERTIES
        is_lowered = (requested.session_expiry_interval or 0) > session.expiry
        keep_alive = None
        if limits.keep_alive and not 0 < packet.keep_alive <= limits.keep_alive:
            keep_alive = connection.keep_alive = limits.keep_alive
        most, most_qos = limits.receive_maximum, connection.most_qos
        properties = Properties(
            session_expiry_interval=int(session.expiry) if is_lowered else None,
            receive_maximum=most if most < 65_535 else None,
            maximum_qos=most_qos if most_qos < 2 else None,
            retain_available=None if limits.retain_available else 0,
            maximum_packet_size=limits.packet_size,
            assigned_client_identifier=None if packet.client_id else session.client_id,
            topic_alias_maximum=limits.topic_alias_maximum or None,
            server_keep_alive=keep_alive,
            authentication_method=requested.authentication_method,
            authentication_data=requested.authentication_data,
        )
        return encode(ConnAck(is_present, 0, properties), V5)

    def set_expiry(self, session: Session, expiry: float) -> None:
        """Set how long a session remains without its client, within the limit."""
        session.expiry = min(expiry, self._effects.limits.session_expiry)
        was_durable = session.is_durable
        session.is_durable = self._effects.is_durable and session.expiry > 0
        if session.is_durable:
            self._effects.records.append(opened(session))
        elif was_durable:
            self._effects.records.append(record.SessionClosed(session.client_id))
        if was_durable != session.is_durable:
            step = 1 if session.is_durable else -1
            for name, subscription in session.subscriptions.items():
                if subscription.qos:
                    session.requests[name].log.durable_readers += step

    # --- the end of a connection ---

    def catch_up(self, connection: Connection) -> bool:
        """Process all packets that a client has sent; return whether they end its connection.

        A client that connects again on a second socket expects its session to include
        everything that it sent on the first, in whatever order the two sockets are read.
        """
        if connection.link.catch_up is not None:
            connection.link.catch_up()
        ending = self._ingress.handle_data(connection) or connection.link.ending
        self._delivery.notify()  # readers of these messages may end with this connection
        if ending is not None:
            self.disconnect(connection, ending)
        return ending is not None

    def disconnect(self, connection: Connection, ending: LinkEnding) -> None:
        """End a connection: its session goes to the graveyard, or ends with it."""
        if connection.held is not None:
            # Packets that it sent before are still valid, including a DISCONNECT.
            ending = self._ingress.handle_held(connection) or ending
        session, effects = connection.session, self._effects
        if session.connection is not connection:
            return
        if ending.expiry is not None:
            self.set_expiry(session, float(ending.expiry))
        session.connection = None
        del self.connections[session.client_id], self.by_link[connection.link]
        self.remote -= not connection.link.is_local
        session.record_event(effects.now, f"disconnected: {ending.reason.name.lower()}")
        self._pull_back(session)
        if session.window_or_none is not None:
            session.window_or_none.connection_lost()
        self._send_farewell(connection, ending)
        if (due := self.wills.end(connection, has_will=ending.has_will)) is not None:
            self.arm(due, session.client_id)
        if session.expiry > 0:
            self.graveyard[session.client_id] = session
            session.expires_at = effects.now + session.expiry
            self.arm(session.expires_at, session.client_id)
            if session.is_durable:
                effects.records.append(opened(session))
        else:
            self.end(session)

    def _pull_back(self, session: Session) -> None:
        """Move a session's requests from the waiters to its tracker; give shared ones back."""
        requests = session.tracker
        for request in requests:
            request.log.unblock(request)
        for request in session.requests.values():
            if request.is_shared:
                group = self._delivery.group_of(request)
                if request.session is session:
                    requests.remove(request)
                    self._delivery.hand_over(group)
                elif group.is_idle:  # it may have waited for this member
                    self._delivery.hand_over(group)
            elif request in request.log.waiters:
                request.log.release()
                del request.log.waiters[request]
                requests.append(request)

    def _send_farewell(self, connection: Connection, ending: LinkEnding) -> None:
        """Send pending acknowledgements, then DISCONNECT if the protocol has it, and close."""
        out, reason = connection.out, ending.reason
        if ending.is_told:
            out += connection.acks
            if connection.is_v5 and reason != ReasonCode.NORMAL_DISCONNECTION:
                # A reason of a CONNACK (for example for a second CONNECT) is invalid in a
                # DISCONNECT.
                code = reason if reason in DISCONNECT_CODES else ReasonCode.PROTOCOL_ERROR
                out.append(encode(Disconnect(code), V5))
        # Also after the client's own DISCONNECT: its link closes when the rest is written.
        out.append(Disconnected(reason, ending.text))
        self._effects.transmits.append((connection.link, out))
        connection.out = []
        connection.acks = []

    # --- the end of a session ---

    def end(self, session: Session) -> None:
        """Remove a session; publish a delayed will of its client."""
        client_id, subscriptions = session.client_id, self._subscriptions
        self.adopted.pop(client_id, None)
        self._histories.pop(client_id, None)
        self._histories[client_id] = session.history
        if len(self._histories) > KEPT:
            del self._histories[next(iter(self._histories))]
        self.wills.publish_waiting(client_id)
        for topic_filter in list(session.subscriptions):
            if session.requests[topic_filter].is_shared:
                group = self._delivery.groups[topic_filter]
                group.take_back(session)
                if group.returned and len(group.members) > 1:
                    self._delivery.offer_returned(group)
            subscriptions.leave(session, topic_filter)
        for request in session.tracker:
            if request.stop is not None and not request.is_retained:  # an ended subscription
                self._logs.drop_reader(request.log)
        session.tracker.clear()
        session.charge(self._effects, -session.weight)
        if session.is_durable:
            self._effects.records.append(record.SessionClosed(client_id))

    def give_up(
        self, client_id: str, reason: ReasonCode = ReasonCode.SESSION_TAKEN_OVER
    ) -> None:
        """End a client's session and its connection: another router has it, for example."""
        if (session := self.graveyard.pop(client_id, None)) is not None:
            self.end(session)
        connection = self.connections.get(client_id)
        if connection is not None and not self.catch_up(connection):
            self.set_expiry(connection.session, 0.0)
            self.disconnect(connection, LinkEnding(reason, has_will=True))
        self._delivery.notify()

    # --- too many messages in memory ---

    def make_room(self) -> None:
        """Reduce the messages in memory below the limit, and set when to count again.

        The largest logs drop all their messages, as they do when one of them is full. If that
        is not enough, sessions end, the largest first.
        """
        limit = self._effects.limits.message_bytes
        total = self._count_messages()
        if total > limit:
            for run in self._all_messages():
                run.forget_forms()
            total = self._count_messages()
        if total > limit:
            total = self._shed_logs(total, limit * 3 // 4)
        while total > limit and self._crowd_out(total, limit * 3 // 4):
            total = self._count_messages()
        appended = self._logs.appended + self._logs.retained.released
        self.look_at = appended + max(limit - total, SLACK)

    def _all_messages(self) -> set[MessageRun]:
        """Return all messages in memory that some reader still needs."""
        logs = self._logs
        segments = (segment for log in logs for segment in log.segments[log.shelved :])
        runs = {run for segment in segments for run in segment.runs}
        for group in self._delivery.groups.values():
            runs.update(run for run, _ in group.returned)
        for session in self:
            runs.update(session.unread)
        return runs.difference(logs.retained)  # retained messages have their own limit

    def _count_messages(self) -> int:
        """Return the bytes of all messages, and of the sessions' records about them."""
        stored = sum(_stored_bytes(session) for session in self)
        return stored + sum(run.memory for run in self._all_messages())

    def _shed_logs(self, total: int, enough: int) -> int:
        """Empty logs, the largest first, until `enough` is reached.

        Return the bytes that are left.
        """
        logs = sorted(self._logs, key=lambda log: log.weight, reverse=True)
        while total > enough and logs and logs[0].weight:
            remaining = total
            while remaining > enough and logs and logs[0].weight:
                log = logs.pop(0)
                remaining -= log.weight
                log.shed()
            total = self._count_messages()
        return total

    def _crowd_out(self, total: int, enough: int) -> bool:
        """End sessions, the largest first; return whether there were any."""
        weights = {session.client_id: _freeable_bytes(session) for session in self}
        client_ids = [name for name, weight in weights.items() if weight]
        client_ids.sort(key=weights.__getitem__, reverse=True)
        for client_id in client_ids:
            if total <= enough:
                break
            total -= weights[client_id]
            if (session := self.get(client_id)) is not None:
                window = session.window_or_none
                self._effects.meters.lost += len(window.unacknowledged) if window else 0
                self._effects.meters.crowded_out += 1
                self.give_up(client_id, ReasonCode.QUOTA_EXCEEDED)
        return bool(client_ids)

    def forget_handed(self, client_id: str) -> None:
        """Forget a session that another router has accepted and confirmed."""
        del self.handed[client_id]
        if self._effects.is_durable:
            self._effects.records.append(record.HandedOver(client_id, ""))

    def revive(self, client_id: str, saved: record.SavedSession) -> Session:
        """Restore a disconnected client's session; its requests start at the logs' ends."""
        session = self.graveyard[client_id] = Session(client_id)
        session.expiry = saved.expiry
        session.is_durable = self._effects.is_durable and saved.expiry > 0
        session.stamp, session.user = saved.stamp, saved.user
        session.expires_at = saved.expires_at
        if session.expires_at is None:  # its client was connected when the router stopped
            session.expires_at = self._effects.now + saved.expiry
        self.arm(session.expires_at, client_id)
        session.received_or_none = saved.received
        session.set_own(self._effects, SESSION_BYTES + 4 * len(client_id))
        session.has_overlaps = len(saved.subscriptions) + len(saved.leaving) > 1
        for subscription in saved.subscriptions.values():
            self._subscriptions.add(session, subscription)
        for subscription in saved.leaving:
            log = self._logs.open(subscription.topic_filter)
            log.readers += 1
            session.tracker.append(DataRequest(log, subscription, session))
        session.leaving = tuple(saved.leaving)
        session.charge(self._effects, sum(leaving.weight for leaving in session.leaving))
        return session

    # --- deadlines ---

    def arm(self, when: float, client_id: str) -> None:
        """Add a deadline of a disconnected client; drop obsolete ones when there are many."""
        self._armed += 1
        heapq.heappush(self.deadlines, (when, self._armed, client_id))
        waiting, handed = self.wills.waiting, self.handed
        if len(self.deadlines) > SPARE + 4 * (len(self.graveyard) + len(waiting) + len(handed)):
            due = [(name, when) for name, (when, _) in waiting.items()]
            due += [(name, item.expires_at) for name, item in handed.items()]
            due += [(name, item.expires_at or 0.0) for name, item in self.graveyard.items()]
            self.deadlines[:] = [(when, order, name) for order, (name, when) in enumerate(due)]
            heapq.heapify(self.deadlines)

    def expire(self) -> None:
        """Handle all deadlines that have passed."""
        now = self._effects.now
        while self.deadlines and self.deadlines[0][0] <= now:
            client_id = heapq.heappop(self.deadlines)[2]
            self.wills.publish_waiting(client_id, now)
            handed = self.handed.get(client_id)
            if handed is not None and handed.expires_at <= now:
                self.forget_handed(client_id)
            session = self.graveyard.get(client_id)
            if session is None or session.expires_at is None:
                continue
            if session.expires_at <= now:
                del self.graveyard[client_id]
                self._effects.meters.expired_sessions += 1
                self.end(session)


def _stored_bytes(session: Session) -> int:
    """Return the bytes that a session needs for messages received or not yet read."""
    unread = sum(r.log.end - r.offset for r in session.tracker if r.is_retained)
    return RECEIVED_BYTES * (len(session.received_or_none or ()) + unread)


def _freeable_bytes(session: Session) -> int:
    """Return the bytes that ending a session might free."""
    return _stored_bytes(session) + sum(run.memory for run in set(session.unread))


def _weight_of(packet: ConnectPacket) -> int:
    """Return the estimated bytes of memory that a session needs for its CONNECT."""
    will, name = packet.will, packet.username or ""
    weight = SESSION_BYTES + 4 * (len(packet.client_id) + len(name))
    if will is not None:
        weight += SESSION_BYTES + len(will.payload) + 4 * len(will.topic)
        weight += len(passed_on(will.properties).properties)
    return weight


def opened(session: Session) -> record.SessionOpened:
    """Return the journal record of a persistent session."""
    when, stamp, user = session.expires_at, session.stamp, session.user
    return record.SessionOpened(session.client_id, session.expiry, when, stamp, user)


def _wanted_expiry(packet: ConnectPacket) -> float:
    """Return the seconds for which a client asks its session to remain without it."""
    if packet.version < V5:
        return 0.0 if packet.clean_start else float(NEVER)
    return float((packet.properties or NO_PROPERTIES).session_expiry_interval or 0)
