"""Recovery of a router from the records of its journal.

The `SavedState` after all records is put into an empty machine. All clients are disconnected.
"""

import sys

from callboard.mqtt.router import record
from callboard.mqtt.router.machine import RouterMachine
from callboard.mqtt.router.session import Session
from callboard.mqtt.router.wills import delay_of
from callboard.mqtt.router.window import LAST_ID, Sent


class Recovery:
    """Applies records; the records of an incomplete snapshot are dropped."""

    def __init__(self) -> None:
        self.state = record.SavedState()
        self._building: record.SavedState | None = None

    @property
    def is_torn(self) -> bool:
        """Whether the records ended within a snapshot."""
        return self._building is not None

    def apply(self, fact: record.JournalRecord) -> None:
        """Apply the next record."""
        match fact:
            case record.SnapshotBegun():
                self._building = record.SavedState()
                fact.apply(self._building)
            case record.SnapshotEnded():
                if fact.is_whole and self._building is not None:
                    self.state = self._building
                self._building = None
            case _:
                fact.apply(self._building or self.state)

    def install(self, machine: RouterMachine) -> None:
        """Put the recovered state into an empty machine."""
        state = self.state
        sessions, logs, groups = machine.sessions, machine.logs, machine.delivery.groups
        logs.number = state.number
        logs.retained.heads.adopt(state.heads, logs.retained.restore(state.retained))
        for client_id, saved in state.sessions.items():
            sessions.revive(client_id, saved)
        for group in groups.values():
            group.request.log.waiters.pop(group.request, None)
        sessions.adopted, sessions.handed = state.adopted, state.handed
        for client_id, handover in state.handed.items():
            sessions.arm(handover.expires_at, client_id)
        self._fill_logs(machine)
        for client_id, saved in state.sessions.items():
            session = sessions.graveyard[client_id]
            set_places(session, saved)
            fill_window(session, saved, state)
        for name, saved_group in state.groups.items():
            self._set_group(machine, name, saved_group)
        machine.ingress.brakes.spare(logs)
        for client_id, (will, when, user) in state.wills.items():
            if when is None:
                owner = sessions.graveyard.get(client_id)
                expiry = 0.0 if owner is None else owner.expiry
                when = machine.effects.now + delay_of(will, expiry)
            sessions.arm(sessions.wills.wait(client_id, will, when, user), client_id)

    def _fill_logs(self, machine: RouterMachine) -> None:
        """Put messages into the logs of sessions: first the shelved ones, then the others."""
        shelved: dict[str, int] = {}
        for part in self.state.shelved:
            if (log := machine.logs.get(part.topic_filter)) is not None:
                log.restore_shelved(part.span, part.starts, part.shelf)
                if part.shelf.numbers:
                    shelved[part.topic_filter] = part.shelf.numbers[-1]
        for run in self.state.runs:
            for topic_filter in run.filters:
                log = machine.logs.get(topic_filter)
                if log is not None and run.number > shelved.get(topic_filter, -1):
                    log.most = sys.maxsize  # nothing is dropped until all offsets are known
                    log.append(run)

    def _set_group(self, machine: RouterMachine, name: str, saved: record.SavedGroup) -> None:
        """Restore the position of a shared subscription."""
        group = machine.delivery.groups[name]
        request = group.request
        request.offset = request.log.offset_of(saved.place)
        for number in saved.returned:
            if (message := self.state.find(number)) is not None:
                group.returned.append(message)
        group.is_idle = group.has_more
        if not group.is_idle:
            request.log.waiters[request] = None


def set_places(
    session: Session, saved: record.SavedSession, *, reads_all: bool = False
) -> None:
    """Restore the positions of a session's subscriptions.

    Deliveries with QoS 0 are not in the journal, so with QoS 0 messages are skipped rather than
    sent twice; unless `reads_all`.
    """
    requests = session.tracker
    for request, (subscription, place) in zip(
        list(requests), saved.leaving.items(), strict=True
    ):
        assert subscription.until is not None
        request.stop = request.log.offset_of(subscription.until)
        is_read = not subscription.qos and not reads_all
        request.offset = request.stop if is_read else request.log.offset_of(place)
    for name, request in session.requests.items():
        if not request.is_shared:
            if session.subscriptions[name].qos or reads_all:
                request.offset = request.log.offset_of(saved.places[name])
            else:
                request.offset = request.log.end
            requests.append(request)


def fill_window(session: Session, saved: record.SavedSession, state: record.SavedState) -> None:
    """Restore messages in flight, to be sent again."""
    window = session.window
    for packet_id, entry in saved.inflight.items():
        if (message := state.find(entry.number_of(packet_id))) is None:
            continue  # damaged; this was logged when the journal was read
        run, start = message
        rest = entry.qos, entry.extra, entry.retain, entry.topic_filter
        origin = entry.is_shared, entry.is_retained
        window.resend[packet_id] = Sent(run, start, packet_id, *rest, *origin)
        window.following = packet_id % LAST_ID + 1
    window.releasing = saved.releasing
