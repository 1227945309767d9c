"""One CAF node, as this node sees it: its actors, pending asks and monitors.

A node is *direct* if this node has a connection with it. This node learns of an *indirect* node
when a direct node forwards its frame or names its actor, and then sends frames to it through
that direct node. CAF does not report when such a path breaks. Therefore all actors that were
reached through a lost connection end here at once, and an indirect node is pinged while it is
used.

A ping monitors an actor that does not exist. CAF's thread for connections answers it at once,
even if all actors of that node are busy. If the answer is missing, this node sends the
forwarding node a message that mentions an actor of the silent node. If the forwarding node has
lost its connection with the silent node, it then sends its next frame for the silent node to
this node, which reveals the loss.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from callboard.caf.errors import CafError, exit_error, reason_of
from callboard.caf.quota import Quota
from callboard.caf.stand_in import CafCell, CafRequests, exception_of
from callboard.caf.wire import connection as caf
from callboard.caf.wire.connection import ASKER, NORMAL
from callboard.caf.wire.message import ExitMessage
from callboard.caf.wire.reader import CafActor, CafNode
from callboard.kernel.actors import ActorRef, Down, ExitReason
from callboard.kernel.context import current_cell
from callboard.kernel.errors import ActorDown, MessageTooLarge, NodeUnreachable
from callboard.kernel.reply import Sender
from callboard.kernel.topology import FIRST_ACTOR
from callboard.kernel.wire import ForeignLink

_log = logging.getLogger("callboard.caf")

#: Bytes that may wait for a peer before senders wait for it.
WAITING_LIMIT: Final = 16 * 1024 * 1024

#: Seconds between two pings to an indirect node; longer if there are many nodes.
PING_SECONDS: Final = 0.05

#: Pings per second to all indirect nodes.
PINGS_PER_SECOND: Final = 200

#: Seconds in which a frame shows that a node has no other path to a lost one.
REPORT_SECONDS: Final = 5.0

#: Seconds of silence, and pings without an answer, after which an indirect node is lost even if
#: the node before it still has a connection.
SILENCE_LIMIT: Final = 5.0
LEAST_PINGS: Final = 5


#: Seconds in which the reason of a linked actor's end arrives.
REASON_SECONDS: Final = 0.2

_UNKNOWN: Final = exit_error(ExitReason.NOT_FOUND)


class CafPeer:
    """One CAF node.

    Attributes:
        node: the node's id.
        link: the connection to the node, or to the direct node that forwards its frames.
        is_direct: whether the connection leads to the node itself.
        former_link: the connection that was used before the node became direct.
        shown_by: of an indirect node, the limits of the connection whose frame named it.
        is_used: of an indirect node, whether a frame was sent to it since the last ping.
    """

    def __init__(self, wire: Any, node: CafNode, link: ForeignLink, *, is_direct: bool) -> None:
        """Create the object for a node that a handshake or a frame has named."""
        self.context, self.runner = wire.context, wire.runner
        self.node, self.link, self.is_direct = node, link, is_direct
        self.former_link: ForeignLink | None = None
        self.shown_by: Quota | None = None
        self.is_lost = self.is_used = False
        self._heard_at = self.context.now()
        #: Pings since the node was last heard.
        self._pings = 0
        self._is_introduced = False
        self.pending = CafRequests()
        #: The stand-ins of the node's actors, by number.
        self.cells: dict[int, CafCell] = {}
        #: Local actors that the peer monitors, by number, with the quota that counts them.
        self.watched: dict[int, tuple[ActorRef, Quota]] = {}
        #: Actors of other CAF nodes that the peer monitors through the local node.
        self.watched_behind: dict[CafActor, Quota] = {}
        #: Monitored actors of lost nodes whose end the peer does not know yet, by node.
        self._unreported: dict[CafNode, list[CafActor]] = {}
        self._wire = wire

    def __str__(self) -> str:
        return str(self.node)

    # --- frames to the node ---

    @property
    def has_room(self) -> bool:
        """Whether the connection can hold further messages."""
        return self.link.waiting <= WAITING_LIMIT or not self.link.is_open

    def encode(self, message: Any) -> bytes:
        """Serialize a message.

        Raises:
            NotSerializable: CAF has no type for a part of the message.
            MessageTooLarge: the message is larger than the limit of this node.
        """
        content: bytes = self._wire.codec.encode(message)
        if len(content) > self._wire.limits.payload:
            msg = (
                f"a message has {len(content):,} B, the limit is {self._wire.limits.payload:,}"
            )
            raise MessageTooLarge(msg)
        return content

    def message(self, message_id: int, source: int, target: int, content: bytes) -> None:
        """Send a message to an actor of the node. Can be called from any thread."""
        if self.is_direct:
            frame = caf.direct(message_id, source, target, content)
        else:
            nodes = self._wire.own, self.node
            frame = caf.routed(nodes, message_id, source, target, content)
        self.link.write(frame)

    def named(
        self,
        message_id: int,
        source: int,
        name: int,
        content: bytes,
        stack: tuple[CafActor, ...] = (),
    ) -> None:
        """Send a message to the actor with a name on the node."""
        if self.is_direct:
            frame = caf.named(message_id, source, name, content, stack)
        else:
            nodes, ids = (self._wire.own, self.node), (message_id, source, name)
            frame = caf.routed(nodes, *ids, content, is_named=True, stack=stack)
        self.link.write(frame)

    def mention(self, node: CafNode) -> None:
        """Send the peer a message that names an actor of `node`.

        A peer without a connection to `node` then sends a frame for it here, which shows that
        `node` is lost. The named actor does not exist, so `node` drops the peer's answer.
        """
        stack = (CafActor(self._wire.pinged, node),)
        self.named(NORMAL, ASKER, caf.SPAWN_NAME, caf.INFO_QUERY, stack)

    def send(
        self, cell: CafCell, content: bytes, sender: Sender | None, *, is_urgent: bool
    ) -> None:
        """Send a message to an actor; register the sender of an ask.

        Raises:
            LinkFull: too many bytes wait to be sent to the peer.
        """
        if not self.has_room:
            self.link.make_room()
        message_id = 0 if is_urgent else NORMAL
        if sender is None:
            self.message(message_id, 0, cell.caf.number, content)
        elif not sender.expects:
            self.message(message_id, self._number_of(sender), cell.caf.number, content)
        elif not sender.wants_reply:  # the message arrived from another node over BASP
            ref = sender.reference(self.context)
            source = 0 if ref is None else self._wire.exports.actor_of(ref).number
            self.message(message_id, source, cell.caf.number, content)
            sender.mark_handled()
        else:
            asking = current_cell.get()
            source = ASKER if asking is None else self._number_of(asking)
            request = self.pending.add(sender, cell)
            self.message(message_id | request, source, cell.caf.number, content)
            # Another thread has ended the actor meanwhile.
            if self.is_lost or cell.reason is not None:
                self.pending.fail(cell, cell.ended_error())

    def _number_of(self, sender: Any) -> int:
        """Return the number under which CAF knows a sending actor."""
        is_here = sender.runtime is self.context and sender.number >= FIRST_ACTOR
        return sender.number if is_here else ASKER

    def request(
        self, name: int, message: Any, on_answer: Callable[[Any], object], *, limit: float
    ) -> None:
        """Ask an actor that CAF runs on every node.

        `on_answer` gets the answer or an exception.
        """
        asker = SystemAsk(on_answer)
        home = CafActor(caf.CONFIG_SERVER, self.node)
        cell = CafCell(self, caf.CONFIG_SERVER, home)  # other actors cannot find this stand-in
        request = self.pending.add(asker, cell)  # type: ignore[arg-type]
        self.named(NORMAL | request, ASKER, name, self.encode(message))
        late = TimeoutError(f"{self.node} did not answer within {limit:g} s")
        self.context.call_later(limit, asker.set_exception, late)
        if self.is_lost:
            asker.set_exception(NodeUnreachable(f"{self.node} is lost"))

    def command(self, cell: CafCell, message: Any, *, is_link: bool = False) -> None:
        """Send an actor a message that CAF's runtime handles, such as a link or an exit."""
        if self.is_lost:
            return
        content, number = self.encode(message), cell.caf.number
        if is_link:
            # As captured frames show, CAF names the receiving actor as the sender of a link.
            nodes = self.node, self.node
            self.link.write(caf.routed(nodes, NORMAL, number, number, content))
            return
        source = 0
        if isinstance(message, ExitMessage) and isinstance(message.source, ActorRef):
            actor = self._wire.exports.actor_of(message.source)
            source = actor.number if actor.node == self._wire.own else 0
        self.message(0, source, number, content)

    # --- actors of the node ---

    def cell_of(self, number: int) -> CafCell:
        """Return the stand-in of an actor; like CAF, monitor the actor of a new stand-in.

        Raises:
            LimitExceeded: frames of the connection named too many actors.
        """
        actor = CafActor(number, self.node)
        cell = self.cells.get(number) or self._wire.ended.get(actor)
        if cell is None:
            quota = self._wire.quota(self.link)
            quota.add_actor()
            cell = self.context.place(lambda local: CafCell(self, local, actor, quota))
            self.cells[number] = cell
            self._wire.stand_ins[actor] = cell
            if self.is_lost:
                self._end(number, ExitReason.UNREACHABLE, "its node is lost")
            else:
                self.link.write(caf.monitor(self._wire.own, actor))
        return cell

    def down(self, number: int, error: CafError | None) -> None:
        """Handle the end of an actor of the peer.

        CAF reports the reason `unknown` for an actor that ended before the monitor arrived. If
        the actor was linked, an exit message with the reason follows.
        """
        cell = self.cells.get(number)
        if cell is None:
            return
        if cell.is_linked and error == _UNKNOWN and not cell.awaits_reason:
            cell.awaits_reason = True
            self.context.call_later(REASON_SECONDS, self._end_without_reason, cell)
            return
        self._wire.remember(cell)
        self._end(number, *reason_of(error))

    def _end_without_reason(self, cell: CafCell) -> None:
        """End the stand-in of an actor whose reason did not arrive."""
        if self.cells.get(cell.caf.number) is cell:
            self.down(cell.caf.number, _UNKNOWN)

    def _end(self, number: int, reason: ExitReason, detail: str) -> None:
        """End a stand-in, and the asks to its actor."""
        cell = self.cells.pop(number)
        if cell.quota is not None:
            cell.quota.actors -= 1
        self._wire.stand_ins.pop(cell.caf, None)
        if cell.reason is None:  # the stand-in has not ended with this node
            cell.terminate(reason, detail)
        self.pending.fail(cell, cell.ended_error())

    def lose(self, reason: str) -> None:
        """End the stand-ins of all actors of the node, because the node is lost."""
        if self.is_lost:
            return
        self.is_lost = True
        self._uncount()
        for number in list(self.cells):
            self._end(number, ExitReason.UNREACHABLE, f"{self.node}: {reason}")
        error = ActorDown(f"{self.node} is lost: {reason}", ExitReason.UNREACHABLE, reason)
        self.pending.fail(None, error)
        for number in list(self.watched):
            self._unwatch(number, demonitor=True)
        for actor in list(self.watched_behind):
            self.watch_behind(actor, None)

    def answer(self, message_id: int, content: Any) -> None:
        """Complete an ask with its answer."""
        pending = self.pending.pop(message_id)
        if pending is None:
            self.context.counters.late_answers += 1
            return
        asker, cell = pending
        if isinstance(content, CafError):
            asker.set_exception(exception_of(content, cell.ref))
        elif not asker.set_result(content):
            self.context.counters.late_answers += 1

    def fail(self, message_id: int, error: BaseException) -> None:
        """Fail an ask whose answer cannot be read."""
        pending = self.pending.pop(message_id)
        if pending is not None:
            pending[0].set_exception(error)

    # --- actors of this node that the node monitors ---

    def _key(self, number: int) -> object:
        """Return the key of the monitor of an actor."""
        return "caf monitor", self.node, number

    def watch(self, number: int, ref: ActorRef | None, quota: Quota) -> None:
        """Report the end of an actor of this node to the CAF node, once.

        Raises:
            LimitExceeded: there are too many monitors.
        """
        if number in self.watched:
            return
        if ref is None:
            self._report(
                number, Down(self.context.ref_of(self.context.node_id, 0), "not_found")
            )
        else:
            quota.add_monitor((self.node, number))
            self.watched[number] = ref, quota
            ref.target.monitor(self._key(number), partial(self._report, number))

    def _unwatch(self, number: int, *, demonitor: bool = False) -> None:
        """Forget that the CAF node monitors an actor. Can be called from any thread."""
        watched = self.watched.pop(number, None)
        if watched is not None:
            ref, quota = watched
            quota.monitors.discard((self.node, number))
            if demonitor:
                ref.target.demonitor(self._key(number))

    def watch_behind(self, actor: CafActor, quota: Quota | None) -> None:
        """Record that the peer monitors an actor of another CAF node.

        Remove that if `quota` is None.

        Raises:
            LimitExceeded: there are too many monitors.
        """
        if quota is None:
            earlier = self.watched_behind.pop(actor, None)
            if earlier is not None:
                earlier.monitors.discard((self.node, actor))
        elif actor not in self.watched_behind:
            quota.add_monitor((self.node, actor))
            self.watched_behind[actor] = quota

    def lose_path(self, node: CafNode) -> None:
        """Handle the loss of `node`, whose actors the peer may monitor through the local node.

        The peer must not get a report if it is now connected with `node` itself. Therefore the
        report waits until the peer sends a frame for `node` here.
        """
        lost = [actor for actor in self.watched_behind if actor.node == node]
        if not lost or not self.link.is_open:
            return
        for actor in lost:
            self.watch_behind(actor, None)
        self._unreported[node] = lost
        self.context.call_later(REPORT_SECONDS, self._unreported.pop, node, None)
        self.mention(node)

    def report_lost(self, node: CafNode) -> None:
        """Report the actors of a lost node, to which frames still arrive from this one."""
        error = self._wire.codec.error_bytes(exit_error(ExitReason.UNREACHABLE))
        for actor in self._unreported.pop(node, ()):
            self.link.write(caf.down(actor, self.node, error))

    def _report(self, number: int, down: Down) -> None:
        """Report the end of an actor to the peer. Can be called from any thread."""
        self._unwatch(number)
        if not self.is_lost:
            error = self._wire.codec.error_bytes(exit_error(down.reason, down.detail))
            actor = CafActor(number, self._wire.own)
            self.link.write(caf.down(actor, self.node, error))

    # --- an indirect node ---

    def go_direct(self, link: ForeignLink) -> None:
        """Use a connection to the node itself from now on.

        All its actors are monitored again, because the end of an actor may have been reported
        only to the node that forwarded frames before.
        """
        self.former_link, self.link, self.is_direct = self.link, link, True
        self._uncount()
        for cell in list(self.cells.values()):
            link.write(caf.monitor(self._wire.own, cell.caf))

    def _uncount(self) -> None:
        """Stop to count for the connection that showed the node."""
        if self.shown_by is not None:
            self.shown_by.nodes -= 1
            self.shown_by = None

    def heard(self) -> None:
        """Handle a sign of life of the node."""
        self._heard_at, self._pings = self.context.now(), 0

    def ping(self, now: float) -> bool:
        """Ping an indirect node; return False if it has been silent for too long."""
        is_used, self.is_used = self.is_used, False
        if self.is_direct or not (is_used or self.cells or len(self.pending)):
            self.heard()
            return True
        if self._pings >= LEAST_PINGS and now >= self._heard_at + SILENCE_LIMIT:
            return False
        if not self._is_introduced or self._pings % 10 == 9:
            # From a routed message the node learns where to send answers; from a monitor it
            # does not.
            self._is_introduced = True
            self.named(NORMAL, ASKER, caf.SPAWN_NAME, caf.INFO_QUERY)
        pinged = CafActor(self._wire.pinged, self.node)
        hub = self._wire.peers.get(self.link.machine.peer)  # type: ignore[attr-defined]
        if self._pings and hub is not None:
            hub.mention(self.node)
        self.link.write(caf.monitor(self._wire.own, pinged))
        self._pings += 1
        return True


class SystemAsk:
    """An ask that the node's wire itself sends; no actor waits for the answer."""

    def __init__(self, on_answer: Callable[[Any], object]) -> None:
        self._on_answer, self.is_done = on_answer, False

    def set_result(self, value: Any) -> bool:
        """Pass the answer on, once."""
        if self.is_done:
            return False
        self.is_done = True
        self._on_answer(value)
        return True

    def set_exception(self, error: BaseException) -> bool:
        """Pass the error on, once."""
        return self.set_result(error)
