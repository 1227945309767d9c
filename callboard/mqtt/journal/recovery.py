"""Recovery: from the journal's records back to a router.

The `SavedState` that the records add up to is put into an empty machine, whose clients are all
away.
"""

import sys

from callboard.mqtt.router import record
from callboard.mqtt.router.machine import RouterMachine
from callboard.mqtt.router.session import Session
from callboard.mqtt.router.wills import delay_of
from callboard.mqtt.router.window import LAST_ID, Sent


class Recovery:
    """Applies records, and knows which snapshots are whole."""

    def __init__(self) -> None:
        self.state = record.SavedState()
        self._building: record.SavedState | None = None

    @property
    def is_torn(self) -> bool:
        """Whether the records ended within a snapshot."""
        return self._building is not None

    def apply(self, fact: record.JournalRecord) -> None:
        """Take the next fact."""
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
        """Put what was found into an empty machine."""
        state = self.state
        sessions, logs, groups = machine.sessions, machine.logs, machine.delivery.groups
        logs.number = state.number
        kept = {topic for topic, run in state.retained.items() if logs.retained.keep(run)}
        logs.retained.heads.adopt(state.heads, kept)
        for client_id, saved in state.sessions.items():
            sessions.revive(client_id, saved)
        for group in groups.values():
            group.request.log.waiters.pop(group.request, None)
        sessions.adopted, sessions.handed = state.adopted, state.handed
        for client_id, handed in state.handed.items():
            sessions.arm(handed.expires_at, client_id)
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
        """Put messages into the logs of sessions: those that are shelved, then the others."""
        behind: dict[str, int] = {}
        for each in self.state.shelved:
            if (log := machine.logs.get(each.topic_filter)) is not None:
                log.restore_shelved(each.span, each.starts, each.shelf)
                if each.shelf.numbers:
                    behind[each.topic_filter] = each.shelf.numbers[-1]
        for run in self.state.runs:
            for topic_filter in run.filters:
                log = machine.logs.get(topic_filter)
                if log is not None and run.number > behind.get(topic_filter, -1):
                    log.most = sys.maxsize  # until places are known, so that losses are told
                    log.append(run)

    def _set_group(self, machine: RouterMachine, name: str, saved: record.SavedGroup) -> None:
        """Let a shared subscription read on where it was."""
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
    """Let a session read on where it was.

    With QoS 0 nobody wrote down what was sent, so it is not sent again; unless `reads_all`.
    """
    requests = session.tracker
    for request, (ended, place) in zip(list(requests), saved.leaving.items(), strict=True):
        assert ended.until is not None
        request.stop = request.log.offset_of(ended.until)
        is_read = not ended.qos and not reads_all
        request.offset = request.stop if is_read else request.log.offset_of(place)
    for name, request in session.requests.items():
        if not request.is_shared:
            if session.subscriptions[name].qos or reads_all:
                request.offset = request.log.offset_of(saved.places[name])
            else:
                request.offset = request.log.end
            requests.append(request)


def fill_window(session: Session, saved: record.SavedSession, state: record.SavedState) -> None:
    """Let a session send again what was in flight."""
    window = session.window
    for packet_id, sent in saved.inflight.items():
        if (message := state.find(sent.number_of(packet_id))) is None:
            continue  # damaged, and told when the journal was read
        run, start = message
        about = sent.qos, sent.extra, sent.retain, sent.topic_filter
        again = Sent(run, start, packet_id, *about, sent.is_shared, sent.is_retained)
        window.resend[packet_id] = again
        window.following = packet_id % LAST_ID + 1
    window.releasing = saved.releasing
