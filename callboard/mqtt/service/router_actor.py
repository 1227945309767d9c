"""The router as an actor, with its own thread and event loop, which serve all connections.

Links put chunks into their buffers and events into the mailbox below; one message makes the
actor take a turn for all of them. Without events the actor is idle.
"""

import contextlib
import gc
import logging
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from callboard.commitlog import LogError, LogFailed
from callboard.kernel.actors import ExitReason, Reminder, handler
from callboard.kernel.context import SystemActor
from callboard.kernel.errors import CallboardError
from callboard.mqtt.access.auth import AuthGate
from callboard.mqtt.journal.journal import MOST_PACKET, RouterJournal
from callboard.mqtt.port.network import RouterNetwork
from callboard.mqtt.router.effects import RouterTurn
from callboard.mqtt.router.link import DisconnectRequested, LinkEnding, RouterMailbox
from callboard.mqtt.router.machine import MOST_EVENTS, RouterMachine
from callboard.mqtt.service import cluster
from callboard.mqtt.service.claims import Answer, Claims, Order, Stamps
from callboard.mqtt.service.config import RouterConfig
from callboard.mqtt.wire.errors import JournalFailed
from callboard.mqtt.wire.reason_code import ReasonCode
from callboard.support.text import logged

_log = logging.getLogger("callboard.mqtt")


class TakeTurn:
    """Makes the actor process events, and send to ready clients."""


TURN: Final = TakeTurn()

#: Seconds between two attempts to write to a full disk.
RETRY_INTERVAL: Final = 0.5

#: Meters of the machine that are logged when they grow.
_REFUSALS: Final = {
    "not_retained": "messages not retained: limits reached (max_retained, max_retained_size)",
    "over_quota": "subscriptions, sessions or wills refused: limits reached "
    "(max_subscriptions, max_subscriptions_size, max_sessions, max_sessions_size)",
    "crowded_out": "sessions ended: unread messages took too much memory (max_messages_size)",
}


class OpenPorts:
    """Opens the configuration's listeners; answered when all are open."""


class CloseRouter:
    """Disconnects the clients, then ends the actor."""


def check_journal(config: RouterConfig) -> None:
    """Check that all packets within the limits fit into the journal, if there is one.

    Raises:
        JournalFailed: the largest packets do not fit into the journal.
    """
    size = config.limits.packet_size
    if config.directory is not None and size > MOST_PACKET:
        message = (
            f"packets of {size:,} bytes do not fit into a journal; allow at most "
            f"{MOST_PACKET:,}, or omit the directory"
        )
        raise JournalFailed(message)


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Turn the garbage collector off for the time of a block.

    A journal makes many objects, none of which is garbage: looking through all of them again
    and again would take longer than reading it.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


#: Receives a router's actor.
Attach = Callable[["RouterActor"], None]


class RouterActor(SystemActor):
    """Runs a `RouterMachine` on a separate thread, which a sync of the disk may block."""

    detached = True

    def __init__(self, mailbox: RouterMailbox, config: RouterConfig, attach: Attach) -> None:
        """Make the machine; ports are opened by `OpenPorts`.

        Args:
            mailbox: the mailbox that receives the events of links.
            config: the config of the router.
            attach: gets this actor, for the facade in the same process.
        """
        self._runner = self.context.runner
        #: Set when the router must end, even if it is waiting for a full disk.
        self.ending = threading.Event()
        self._mailbox = mailbox
        self._config = config
        self._journal: RouterJournal | None = None
        self._stamps = Stamps(time.time_ns)
        self._cluster: cluster.ClusterGate | None = None
        self._failure: LogError | None = None
        self._reminder: Reminder | None = None
        self._logged_refusals = dict.fromkeys(_REFUSALS, 0)
        self._due: float | None = None
        self.machine = RouterMachine(
            config.limits,
            is_durable=config.directory is not None,
            make_client_id=lambda: f"auto-{self._make_name()}",
            chance=self._runner.random,
            now=self._runner.now(),
            events=mailbox.events,
            make_stamp=self._stamps.make,
            origin=self._runner.random.randbytes(8),
        )
        gate = AuthGate(
            config.security, config.authenticator, config.hooks.subscribe, config.methods
        )
        self.machine.sessions.wills.is_removed = gate.is_removed
        self.edge = RouterNetwork(
            mailbox, self._runner, config.network_limits(), gate, config.hooks
        )
        self.edge.on_check = self._log_refusals
        self.edge.connections.report = self.runtime.report
        attach(self)
        mailbox.attach(partial(self.context.post, TURN, None))

    def is_here(self) -> bool:
        """Return whether the caller is on the router's thread."""
        return self._runner.is_runner_thread()

    def _make_name(self) -> str:
        """Return an unguessable name."""
        return self._runner.random.randbytes(12).hex()

    @handler(cancellable=False)
    async def open_ports(self, _: OpenPorts) -> CallboardError | None:
        """Open the listeners, so that clients can connect; return an error if that fails."""
        config = self._config
        try:
            check_journal(config)
            if config.directory is not None:
                machine = self._runner.machine
                self._journal = RouterJournal(
                    Path(config.directory),
                    now=self._runner.now,
                    wall_clock=time.time_ns,
                    disk=None if machine is None else machine.disk,
                    mode=config.directory_mode,
                )
                with _without_collections():
                    self._journal.restore(self.machine)
        except JournalFailed as error:
            return error
        except LogError as error:
            problem = f"the journal in {config.directory} cannot be used: {error}"
            message = f"{problem}; replace it by a copy, or move it away to start without it"
            return JournalFailed(message)
        edge, group, loop = self.edge, self.node.group(cluster.ROUTERS), self._runner.loop
        claims = Claims(
            self.machine,
            config.sessions,
            self._stamps,
            lambda: edge.listeners[0].address if edge.listeners else "",
            self._make_name,
        )
        exchange = cluster.RetainedExchange(self.machine.logs, self._stamps)
        gate = self._cluster = cluster.ClusterGate(
            edge.gate, claims, group, self.me, loop, self._settle_beside, exchange
        )
        edge.connections.gate = gate
        try:
            await edge.open(config.listeners)
        except CallboardError as error:
            return error
        group.join(self.me)
        self._mailbox.wake()  # restored wills and sessions may be due
        gate.resolve_all()
        return None

    # --- other routers; see `claims` ---

    @handler
    def answer(self, order: Order) -> Answer:
        """Answer another router, after its order is durable here."""
        if self._cluster is None:
            return None
        self._settle()
        answer = self._cluster.claims.answer(order)
        self._settle()
        return answer

    @handler
    def newer(self, question: cluster.RetainedQuestion) -> cluster.RetainedPiece:
        """Return newer retained messages of this router, after they are durable."""
        if self._cluster is None:
            return cluster.RetainedPiece(())
        self._settle()
        return self._cluster.exchange.answer(question)

    @handler
    def compare(self, digests: cluster.RetainedDigests) -> None:
        """Compare the retained messages of another router with ours."""
        if self._cluster is not None:
            self._cluster.take_digests(digests)

    @handler
    def take_piece(self, piece: cluster.RetainedPiece) -> None:
        """Apply retained messages of another router."""
        if self._cluster is not None:
            self._settle()  # which also updates the machine's clock
            self._cluster.exchange.take(piece)
            self._settle()

    def _settle(self) -> None:
        """Process all waiting events, and make their effects durable."""
        for _ in range(len(self.machine.events) // MOST_EVENTS + 1):
            self.turn(TURN)
        while self.machine.effects.records:  # records of a turn that failed
            self.turn(TURN)

    def _settle_beside(self) -> None:
        """Settle outside of the actor's messages.

        If the journal fails, the next turn ends us.
        """
        try:
            self._settle()
        except LogError:
            self._mailbox.wake()
            raise

    @handler(concurrent=True, cancellable=False)
    async def leave(self, _: CloseRouter) -> None:
        """Close the router; turns continue while the clients are disconnected."""
        await self.edge.close()
        if self._journal is not None:
            self._journal.close()
        self.stop_self(ExitReason.NORMAL)

    @handler
    def turn(self, _: TakeTurn) -> None:
        """Run the machine once, and carry out its effects in order."""
        mailbox, machine = self._mailbox, self.machine
        mailbox.wake_pending = False
        if self._failure is not None:
            raise self._failure
        try:
            turn = machine.run_turn(self._runner.now())
        except BaseException as error:  # noqa: BLE001  (one client must not end the router)
            logged(_log, "a turn of the MQTT router failed", error=error)
            self._blame()
            mailbox.wake()
            return
        if turn.records and self._journal is not None:
            try:
                self._write(self._journal, turn)
            except LogError as error:
                self._failure = error
                # Nothing is sent: some records may not be durable.
                _log.critical("the journal of the MQTT router failed; the router ends")
                self.edge.cut()
                raise
        # First all buffers are filled, then all links are woken, then everything is written.
        woken = []
        for link, notifications in turn.transmits:
            link.outgoing += notifications
            if not link.is_woken:
                link.is_woken = True
                woken.append(link)
        for link in woken:
            link.wake()
        self.edge.connections.write_all()
        if turn.alerts or turn.fetches or machine.logs.retained.heads.changed:
            self._report(turn)
        self._schedule_turn()

    def _write(self, journal: RouterJournal, turn: RouterTurn) -> None:
        """Make the effects of a turn durable; while the disk is full, all clients wait.

        Raises:
            LogError: the journal has failed for good.
        """
        is_reported = False
        while True:
            try:
                journal.write(turn.records, self.machine)
            except LogFailed as error:
                if journal.has_failed or self.ending.is_set() or self.runtime.is_closed:
                    raise
                if not is_reported:
                    _log.error("the MQTT router and its clients wait for the disk: %s", error)
                is_reported = True
                self._runner.wait_for(self.ending, RETRY_INTERVAL)
            else:
                if is_reported:
                    _log.warning("the journal of the MQTT router is written again")
                return

    def _report(self, turn: RouterTurn) -> None:
        """Carry out the rare effects of a turn."""
        for alert in turn.alerts:
            self.runtime.report(alert)
        if turn.fetches and self._journal is not None:
            self._journal.fetch(turn.fetches, self.machine)
        if self._cluster is not None:
            self._cluster.send_news()

    def _log_refusals(self) -> None:
        """Log refusals since the last call; called about once a second."""
        for name, label in _REFUSALS.items():
            count = getattr(self.machine.meters, name)
            if count > self._logged_refusals[name]:
                _log.warning("%d %s", count - self._logged_refusals[name], label)
                self._logged_refusals[name] = count

    def _schedule_turn(self) -> None:
        """Schedule the next turn: at once, or at the next deadline."""
        mailbox, machine = self._mailbox, self.machine
        if not machine.is_idle:
            if not mailbox.wake_pending:
                mailbox.wake()
        elif machine.next_deadline != self._due:
            self._arm(machine.next_deadline)

    def on_end(self, _reason: ExitReason, _detail: str) -> None:
        """Release the ports and the journal for the next router, however this one ended."""
        self.edge.cut()
        if self._journal is not None:
            with contextlib.suppress(LogError):
                self._journal.close()

    def _blame(self) -> None:
        """Disconnect the client whose event made a turn fail."""
        link = self.machine.at_hand
        if link is not None and link in self.machine.sessions.by_link:
            ending = LinkEnding(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, has_will=True)
            self._mailbox.events.appendleft(DisconnectRequested(link, ending))

    def _arm(self, due: float | None) -> None:
        """Schedule a turn at a time."""
        if self._reminder is not None:
            self._reminder.cancel()
        self._due = due
        if due is not None:
            self._reminder = self.after(max(due - self._runner.now(), 0.0), TURN)
