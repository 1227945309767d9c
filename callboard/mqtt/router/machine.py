"""The router as a pure machine: events of links in, records and notifications out.

Four objects own its state and call each other in this direction only:

    sessions -> ingress -> delivery -> logs

`Sessions` has the clients, connected or not; `Ingress` processes their packets; `Logs` has the
messages; `Delivery` sends them. Between ingress and delivery are two classes for rare cases:
`Subscriptions` and `Backpressure`. All of them add to the `Effects` of the turn.

The effects of a turn are carried out in order: first the records are made durable, then the
notifications go to the links. So an acknowledged message is durable, and a restarted router
knows every message that a subscriber got.
"""

from collections import deque
from collections.abc import Callable

from callboard.mqtt.router.delivery import Delivery
from callboard.mqtt.router.effects import Effects, RouterTurn
from callboard.mqtt.router.ingress import Ingress
from callboard.mqtt.router.limits import Limits
from callboard.mqtt.router.link import (
    AccessChanged,
    ConnectRequested,
    DeviceData,
    DisconnectRequested,
    LinkEvent,
    Ready,
    RouterLink,
)
from callboard.mqtt.router.logs import Logs
from callboard.mqtt.router.sessions import Sessions
from callboard.mqtt.router.share import RandomSource
from callboard.mqtt.router.subscribing import Subscriptions

#: Events of one turn; bounded, so that a flood of events cannot stop deliveries.
MOST_EVENTS = 500


class RouterMachine:
    """Runs the turns of a router.

    Attributes:
        events: the events of links, in order; callers append to it.
        effects: the effects of the current turn.
        logs: the messages.
        delivery: sends messages.
        ingress: processes packets.
        sessions: the sessions of clients.
        at_hand: the link of the last event, which is at fault if a turn fails.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        is_durable: bool = False,
        make_client_id: Callable[[], str],
        chance: RandomSource,
        now: float = 0.0,
        events: deque[LinkEvent] | None = None,
        make_stamp: Callable[[], int] = lambda: 0,
        origin: bytes = b"",
    ) -> None:
        """Make an empty router.

        Args:
            limits: the limits of the router.
            is_durable: whether the records of each turn go to a journal.
            make_client_id: returns unguessable ids, for clients without one.
            chance: the random numbers for shared subscriptions with the strategy *random*.
            now: the time.
            events: the queue of link events, if it exists already.
            make_stamp: returns a greater number for each connect and each write of a retained
                message than for all earlier ones in the cluster; 0 without a cluster.
            origin: the origin of this router's writes; unique in the cluster.
        """
        self.events: deque[LinkEvent] = deque() if events is None else events
        effects = self.effects = Effects(
            now=now, limits=limits or Limits(), is_durable=is_durable
        )
        logs = self.logs = Logs(effects, make_stamp, origin)
        delivery = self.delivery = Delivery(logs, effects)
        subscriptions = Subscriptions(logs, delivery, effects, chance)
        ingress = self.ingress = Ingress(logs, delivery, subscriptions, effects)
        self.sessions = Sessions(
            logs, delivery, subscriptions, ingress, effects, make_client_id, make_stamp
        )
        self.meters = effects.meters
        self.at_hand: RouterLink | None = None

    @property
    def is_idle(self) -> bool:
        """Whether a turn would do nothing until the next event or deadline."""
        return not self.events and not self.delivery.ready

    @property
    def next_deadline(self) -> float | None:
        """The time of the next will, end of a session, or check of slow readers."""
        check, deadlines = self.ingress.brakes.due, self.sessions.deadlines
        due = deadlines[0][0] if deadlines else None
        return due if check is None else check if due is None else min(due, check)

    def run_turn(self, now: float) -> RouterTurn:  # noqa: C901  (calls cost too much here)
        """Process up to `MOST_EVENTS` events, and send to up to `MOST_READY` connections."""
        effects, delivery, logs = self.effects, self.delivery, self.logs
        effects.now = now
        deadlines = self.sessions.deadlines
        if deadlines and deadlines[0][0] <= now:
            self.sessions.expire()
        if logs.woken:
            delivery.notify()
        events, by_link = self.events, self.sessions.by_link
        for _ in range(min(len(events), MOST_EVENTS)):
            event = events.popleft()
            link = self.at_hand = event.link
            connection = by_link.get(link)
            if type(event) is not DeviceData:
                self._take(event)
            elif connection is None:
                link.incoming.clear()
            else:
                ending = self.ingress.handle_data(connection)
                if ending is not None:
                    self.sessions.disconnect(connection, ending)
            if logs.woken:
                delivery.notify()
        if logs.unblocked:
            delivery.pass_windows()
        if logs.appended + logs.retained.released > self.sessions.look_at:
            self.sessions.make_room()
        if delivery.ready:
            delivery.serve()
        if self.ingress.brakes.braked:
            for connection, ending in self.ingress.relax():
                self.sessions.disconnect(connection, ending)
        for connection in delivery.touched:
            if connection.out:
                effects.transmits.append((connection.link, connection.out))
                connection.out = []
        delivery.touched.clear()
        return effects.take()

    def _take(self, event: LinkEvent) -> None:
        """Handle an event other than received packets."""
        if type(event) is ConnectRequested:
            self.sessions.connect(event.link)
            return
        connection = self.sessions.by_link.get(event.link)
        if connection is None:
            return  # the connection has ended already
        if type(event) is Ready:
            self.delivery.emptied(connection)
        elif isinstance(event, DisconnectRequested):
            self.sessions.disconnect(connection, event.ending)
        elif isinstance(event, AccessChanged):
            connection.forget_answers()
