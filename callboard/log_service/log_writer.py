"""Appends to a log of another node, with receipts.

    append() ──rows──> queue ──ask──> the node's intake ──offset, durable──> append() returns

Up to `WINDOW` appends may be in flight. They are batched with the appends of other writers on
this node (`callboard.log_service.append_batcher`). An append stays in the queue, in the order
of numbers, until its receipt arrives. When the link is lost, an actor of the sending node links
again, resumes the producer's epoch, and sends the queue once more. The log recognizes the
records that it has already by their numbers.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any, Final, Self

from callboard import locks
from callboard.backoff import Backoff
from callboard.commitlog.batch import MAX_BATCH_RECORDS
from callboard.commitlog.columns import (
    Headers,
    Key,
    check_times,
    encode_payloads,
    rows_of,
)
from callboard.commitlog.errors import (
    InvalidRecord,
    LogClosed,
    LogError,
    LogFailed,
    ProducerFenced,
    ReceiptUnknown,
    WrongNumber,
)
from callboard.commitlog.producing.numbered_writer import (
    BatchFields,
    NumberedWriter,
    RecordFields,
)
from callboard.commitlog.producing.producer import Numbering
from callboard.commitlog.producing.table import ProducerEntry, ProducerOpening
from callboard.kernel.actors import ActorRef, handler
from callboard.kernel.context import Node, SystemActor
from callboard.kernel.errors import (
    AskTimeout,
    CallboardError,
    LinkError,
    NodeClosed,
    NotPermitted,
    NotRegistered,
    RemoteError,
    WrongArgument,
)
from callboard.kernel.reply import Future
from callboard.kernel.shutdown import Phase
from callboard.kernel.topology import LOG_INTAKE
from callboard.log_service.append import AppendedRow, OpenLogProducer, ProducerAppend, error_of
from callboard.log_service.append_batcher import (
    AppendBatcher,
    PendingAppend,
    WaitingAppend,
    carrier_of,
)
from callboard.log_service.node_disk import LogCaller
from callboard.support import after_fork
from callboard.support.seconds import checked_seconds

#: Appends that may wait for receipts; the next append blocks until one has its receipt.
WINDOW: Final = 64
#: Seconds after which an append fails without a receipt.
TIMEOUT: Final = 30.0
#: Seconds between attempts to reach the log, at first and at most.
_PAUSES: Final = (0.05, 1.0)
#: Errors that would only recur if the request were repeated.
_FINAL: Final = (NotPermitted, NotRegistered, WrongArgument, LinkError)


class _Intake(LogCaller):
    """A client for the intake of the node that has a log."""

    def begin(self, question: Any, timeout: float = 10.0) -> Future[Any] | None:
        """Send a request to the intake of the node linked last; None if no node is linked."""
        if self._peer is None:
            return None
        return self.intake(self._peer).ask(question, timeout)

    @property
    def node(self) -> Node:
        """The node that sends the requests."""
        return self._node

    @property
    def address(self) -> str:
        """Address of the node that has the log."""
        return self._address

    @property
    def peer(self) -> bytes:
        """Id of the node that has the log."""
        assert self._peer is not None
        return self._peer

    def intake(self, peer: bytes) -> ActorRef:
        """Return the intake of a node."""
        return self._node.context.ref_of(peer, LOG_INTAKE)

    def wait(self, future: Future[int]) -> int:
        """Wait for a receipt."""
        return int(self._wait(future))


class LogWriter(NumberedWriter):
    """Appends to a log of another node; returns offsets when its records are durable.

    Records carry the numbers of a producer, as with `CommitLog.producer`, so a repeated append
    is not a duplicate. Methods may be called from any thread. Appends of several threads are
    sent in order, without waiting for each other's receipts.
    """

    def __init__(
        self,
        address: str,
        producer: str,
        *,
        begin: int | None = None,
        token: str | None = None,
        tls: str | Path | None = None,
        node: Node | None = None,
        timeout: float = TIMEOUT,
        window: int = WINDOW,
    ) -> None:
        """Open a producer of a log. Earlier writers with this producer name are fenced off.

        Args:
            address: `basp://HOST:PORT/NAME` of a node with `serve_logs`.
            producer: Name of the producer.
            begin: Number of the first record, if the log does not know the producer.
            token: The secret to prove; the environment's CALLBOARD_SECRET by default.
            tls: Folder with `authority.pem`, as for `LogReader`; CALLBOARD_TLS by default.
            node: The `Node` of this program to send with, using its secret and TLS; by
                default one in the background.
            timeout: Seconds after which an append fails; it may have been appended or not.
            window: Appends that may wait for receipts; the next one blocks.

        Raises:
            LogFailed: no node answers, or the node refuses.
            InvalidOption: an argument is invalid.
        """
        checked_seconds(timeout, "timeout")
        self._timeout = timeout
        self._numbering = Numbering(producer, begin)
        self._caller = _Intake(address, token, tls, node)
        self._node = self._caller.node
        self._lock = locks.collecting_lock("log writer", 450)
        after_fork.register(self)
        #: One permit for each append without a receipt: a window, and not a bounded queue, as
        #: appends are neither dropped nor refused for lack of room.
        self._room = threading.BoundedSemaphore(window)
        self._queue: deque[WaitingAppend] = deque()
        self._carrier: AppendBatcher | None = None
        self._attempt, self._era = 1, 0
        self._is_in_doubt = self._is_linking = False
        self._end: LogError | None = None
        self._last_error = ""
        largest = self._apply_opening(self._caller.ask(self._question(0)))
        self._carrier = self._carrier_to(self._caller.peer, largest)
        self._linker = self._node.context.start_actor(_Linker, (self,))
        closed = LogClosed(f"{self._node.name} was closed, and with it this writer")
        end = partial(self._fail, closed)
        self._forget_end = self._node.context.shutdown.on(Phase.ENDED, end)

    @property
    def producer(self) -> str:
        """The name of the producer."""
        return self._numbering.name

    @property
    def last(self) -> int | None:
        """The number of the last record with a receipt; None before the first."""
        return self._numbering.last

    # --- appending ---

    def _write(self, fields: RecordFields, number: int | None) -> int:
        """Append a record, and wait for its receipt."""
        self._room.acquire()
        return self._caller.wait(self._submit(partial(_row, *fields), number))

    async def _awrite(self, fields: RecordFields, number: int | None) -> int:
        """Append a record, and await its receipt."""
        if not self._room.acquire(blocking=False):
            loop = asyncio.get_running_loop()
            room = loop.run_in_executor(None, self._room.acquire)
            try:
                await asyncio.shield(room)
            except asyncio.CancelledError:  # the thread still waits, and will acquire
                room.add_done_callback(lambda _: self._room.release())
                raise
        return await self._submit(partial(_row, *fields), number)

    def _write_batch(
        self, payloads: Sequence[Any], fields: BatchFields, number: int | None
    ) -> int:
        """Append a batch, and wait for its receipt."""
        self._room.acquire()
        return self._caller.wait(self._submit(partial(_rows, payloads, *fields), number))

    def append_soon(
        self,
        topic: str,
        payload: Any,
        *,
        key: Key = None,
        headers: Headers = None,
        sender: str = "",
        time: int | None = None,
        number: int | None = None,
    ) -> Future[int]:
        """Append one record; return a future of its offset. Blocks only if the window is full.

        If a record is refused, the records queued after it are refused as well.
        """
        self._room.acquire()
        row = partial(_row, topic, payload, key, headers, sender, time)
        return self._submit(row, number)

    def publish(
        self,
        topic: str,
        value: Any,
        *,
        key: Key = None,
        headers: Headers = None,
        number: int | None = None,
    ) -> int:
        """Append a record; the node of the log publishes it once it is durable.

        Returns the offset. Subscribers receive the record at most once, as any publication;
        the log has it in any case. A repeated append publishes the record only if the log did
        not have it before.

        Raises:
            LogFailed: the log's node has no endpoint, or this node lacks the right to publish.
            LogError: as for `append`.
        """
        self._room.acquire()
        row = partial(_row, topic, value, key, headers)
        return self._caller.wait(self._submit(row, number, is_published=True))

    def _submit(
        self,
        encode: "partial[list[AppendedRow]]",
        number: int | None,
        *,
        is_published: bool = False,
    ) -> Future[int]:
        """Queue records and send them; the caller has acquired room in the window."""
        try:
            rows = encode()
            with self._lock:
                if self._end is not None:
                    raise self._end
                if number is not None:
                    number = self._numbering.number(number, len(rows))
                now = self._node.context.now()
                deadline = now + self._timeout
                waiting = WaitingAppend(rows, number, deadline, is_published=is_published)
                waiting.on_done(self._make_room)
                self._queue.append(waiting)
                carrier = self._carrier
                if carrier is None:
                    self._link()
                else:
                    self._send(waiting, carrier)
        except BaseException:
            self._room.release()
            raise
        if carrier is not None:
            carrier.ship()
        return waiting

    def _make_room(self, _: Future[int]) -> None:
        self._room.release()

    def _send(self, waiting: WaitingAppend, carrier: AppendBatcher) -> None:
        """Pass an append to the carrier, after assigning the next number if it lacks one."""
        numbering = self._numbering
        if waiting.number is None:
            waiting.number = numbering.next
            numbering.next += len(waiting.rows)
        waiting.attempt, waiting.era = self._attempt, self._era
        append = ProducerAppend(
            numbering.name, numbering.epoch, waiting.number, waiting.rows, waiting.is_published
        )
        carrier.put(self, waiting, self._attempt, append)

    def is_current(self, attempt: int) -> bool:
        """Return whether appends of this link attempt are still to be sent."""
        return attempt == self._attempt and self._end is None

    def unsent(self, waiting: WaitingAppend, error: CallboardError) -> None:
        """Fail an append that exceeds the message limit, or whose node is closed."""
        with self._lock:
            self._refuse(waiting, LogFailed(f"{self._caller.text}: {error}"))

    # --- answers ---

    def take(self, parcel: PendingAppend, error: BaseException | None, reply: Any) -> bool:
        """Handle the reply to an append, unless it has been sent again since."""
        waiting = parcel.waiting
        with self._lock:
            if waiting.attempt != parcel.attempt:
                return False
            if error is None and type(reply) is int:
                assert waiting.number is not None
                self._numbering.took(waiting.number, len(waiting.rows))
                return True
            if error is None:
                self._handle_refusal(waiting, reply)
            elif isinstance(error, AskTimeout):
                self._handle_timeout(waiting, str(error))
            elif isinstance(error, NodeClosed):
                self._end_with(LogClosed(f"{self._caller.text}: {error}"))
            elif isinstance(error, RemoteError):
                self._settle(waiting, self._unknown(waiting, str(error)))
            elif isinstance(error, _FINAL):
                self._refuse(waiting, LogFailed(f"{self._caller.text}: {error}"))
            else:
                self._lose(str(error))
        return False

    def forget(self, waiting: WaitingAppend) -> None:
        """Remove an append from the queue."""
        with self._lock:
            if self._queue and self._queue[0] is waiting:
                self._queue.popleft()
            elif waiting in self._queue:
                self._queue.remove(waiting)

    def _handle_timeout(self, waiting: WaitingAppend, reason: str) -> None:
        """Give up an append that has expired, and link again for the others of its group."""
        if self._node.context.now() >= waiting.until:
            self._give_up(waiting)
        self._lose(reason)

    def _handle_refusal(self, waiting: WaitingAppend, reply: Any) -> None:
        """Handle a reply that is not an offset."""
        error = error_of(reply)
        if isinstance(error, ReceiptUnknown):
            self._lose(str(error))
        elif isinstance(error, ProducerFenced):
            self._end_with(error)
        else:
            self._refuse(waiting, error or LogFailed(f"{self._caller.text}: malformed reply"))

    def _refuse(self, waiting: WaitingAppend, error: LogError) -> None:
        """Fail an append that the log refused; its number can be used again.

        Later numbers were refused too, as each would leave a gap. Only the first refusal of an
        era resets the next number; the others would reset it past appends made since.
        """
        if not waiting.is_given and waiting.number is not None:
            if isinstance(error, WrongNumber):
                msg = (
                    f"{self._caller.text}: not appended, because an earlier record was refused"
                )
                error = LogFailed(msg)
            if waiting.era == self._era:
                self._era += 1
                self._numbering.next = waiting.number
        self._settle(waiting, error)

    def _settle(self, waiting: WaitingAppend, outcome: LogError) -> None:
        """Fail an append, unless it failed already, and remove it from the queue."""
        self.forget(waiting)
        self._lock.after(waiting.set_exception, outcome)

    def _unknown(self, waiting: WaitingAppend, reason: str = "") -> LogError:
        """Return the error of an append without a reply; if sent, it may be in the log."""
        if waiting.number is None:
            msg = f"{self._caller.text}: not appended, no answer for {self._timeout:g} s"
            return LogFailed(f"{msg}{reason and f' ({reason})'}")
        msg = (
            f"{self._caller.text}: no receipt for number {waiting.number} of {self.producer}"
            f" after {self._timeout:g} s{reason and f' ({reason})'}; it may have been appended:"
            f" append it again with number={waiting.number}"
        )
        return ReceiptUnknown(msg, waiting.number)

    def _give_up(self, waiting: WaitingAppend) -> None:
        """Fail an expired append. It stays in the queue while others wait.

        The log refuses later numbers as long as this one is missing, so a new link must send it
        again.
        """
        waiting.is_over = True
        self._lock.after(waiting.set_exception, self._unknown(waiting, self._last_error))
        if all(append.is_done or append.is_over for append in self._queue):
            was_sent = any(append.attempt for append in self._queue)
            self._is_in_doubt = self._is_in_doubt or was_sent
            self._queue.clear()
            self._carrier = None

    def _end_with(self, error: LogError) -> None:
        """Fail all appends in the queue, and all later ones."""
        self._end, self._carrier = error, None
        while self._queue:
            self._settle(self._queue[0], error)

    # --- the link ---

    def _lose(self, reason: str) -> None:
        """Link again, which then sends the whole queue once more."""
        self._carrier, self._last_error = None, reason or self._last_error
        self._attempt += 1
        if self._queue:
            self._link()

    def _link(self) -> None:
        """Start the actor that links again, unless it is at work already."""
        if not self._is_linking:
            self._is_linking = True
            self._linker.tell(Relink())

    def _question(self, epoch: int) -> OpenLogProducer:
        return OpenLogProducer(self._caller.log, self.producer, epoch, has_groups=True)

    def _carrier_to(self, peer: bytes, largest: int) -> AppendBatcher:
        caller = self._caller
        ref = caller.intake(peer)
        return carrier_of(self._node, peer, caller.log, self._timeout, largest, ref)

    def _apply_opening(self, reply: Any) -> int:
        """Apply the reply to opening the producer; return the limit of groups in bytes.

        Raises:
            LogError: the log refused.
        """
        if (error := error_of(reply)) is not None:
            raise error
        try:
            epoch, last, has_forgotten, *groups = reply
            largest = int(groups[0]) if groups else 0  # older nodes do not support groups
            entry = ProducerEntry(self.producer, epoch, int(last), 1, 0, -1, 0, 0)
        except (TypeError, ValueError):
            msg = f"{self._caller.text}: malformed reply"
            raise LogFailed(msg) from None
        numbering, issued = self._numbering, self._numbering.next
        numbering.opened(
            ProducerOpening(epoch, entry if last >= 0 else None, bool(has_forgotten))
        )
        if any(append.number is not None for append in self._queue):
            numbering.next = max(numbering.next, issued)
        self._is_in_doubt = False
        return largest

    async def relink(self, actor: "_Linker") -> None:
        """Link again and send the queue; fail appends that expire. Called by the actor."""
        backoff = Backoff(*_PAUSES)
        while self._has_pending():
            try:
                peer = await self._node.aconnect(self._caller.address, 2.0)
                epoch = 0 if self._is_in_doubt else self._numbering.epoch
                ref = self._caller.intake(peer)
                reply = await ref.ask(self._question(epoch), 5.0)
                with self._lock:
                    carrier = self._carrier_to(peer, self._apply_opening(reply))
                    self._resend(carrier)
                carrier.ship()
                return
            except ProducerFenced as error:
                self._fail(error)
            except NodeClosed as error:
                self._fail(LogClosed(f"{self._caller.text}: {error}"))
            except (NotPermitted, NotRegistered, WrongArgument) as error:
                self._fail(LogFailed(f"{self._caller.text}: {error}"))
            except (CallboardError, LogError) as error:
                self._last_error = str(error)
                await actor.sleep(backoff.next_pause())

    def _has_pending(self) -> bool:
        """Give up expired appends; return whether the queue still has any to send."""
        with self._lock:
            now = self._node.context.now()
            for append in list(self._queue):
                if not (append.is_done or append.is_over) and now >= append.until:
                    self._give_up(append)
            self._is_linking = bool(self._queue)
            return self._is_linking

    def _fail(self, error: LogError) -> None:
        with self._lock:
            self._end_with(error)

    def _resend(self, carrier: AppendBatcher) -> None:
        """Send the whole queue, in order."""
        self._carrier, self._is_linking = carrier, False
        for waiting in self._queue:
            self._send(waiting, carrier)

    # --- the end ---

    def flush(self) -> None:
        """Wait until every append made so far has succeeded or failed."""
        with self._lock:
            waiting = [append for append in self._queue if not append.is_done]
        for future in waiting:
            with suppress(LogError):  # raised where the record was appended
                self._caller.wait(future)

    @after_fork.nothing_in_copies
    def close(self) -> None:
        """Wait for outstanding receipts and close the writer; a second call does nothing."""
        if self._end is None:
            self.flush()
            self._fail(LogClosed(f"this writer of {self._caller.text} was closed"))
            self._linker.stop()
            self._forget_end()

    def __enter__(self) -> Self:
        """Return the writer."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()


class Relink:
    """Asks a linker to link again."""


class _Linker(SystemActor):
    """Links a writer with its log again; runs on the sending node."""

    def __init__(self, writer: LogWriter) -> None:
        self._writer = writer

    @handler
    async def relink(self, _: Relink) -> None:
        """Link again and send the queue."""
        await self._writer.relink(self)


def _row(
    topic: str,
    payload: Any,
    key: Key = None,
    headers: Headers = None,
    sender: str = "",
    time: int | None = None,
) -> list[AppendedRow]:
    """Return one record in the form that is sent; the log checks all but the payload.

    Raises:
        InvalidRecord: the payload cannot be stored.
    """
    (data,), is_bytes, _ = encode_payloads([payload])
    texts = None if headers is None else dict(headers)
    return [AppendedRow(topic, bytes(data), is_bytes, key, texts, sender, time)]


def _rows(
    payloads: Sequence[Any],
    topic: str | Sequence[str],
    key: Key | Sequence[Key],
    headers: Headers | Sequence[Headers],
    sender: str | Sequence[str],
    time: Sequence[int] | None,
) -> list[AppendedRow]:
    """Return records in the form that is sent.

    Raises:
        InvalidRecord: a record cannot be stored, or the number of records is out of range.
    """
    count = len(payloads)
    if not 1 <= count <= MAX_BATCH_RECORDS:
        msg = f"a batch of {count:,} records; append 1 to {MAX_BATCH_RECORDS:,} at once"
        raise InvalidRecord(msg)
    data, all_bytes, kinds = encode_payloads(payloads)
    is_bytes = map(bool, kinds) if kinds else repeat(all_bytes)
    columns = (rows_of(column, count) for column in (topic, key, headers, sender))
    topics, keys, maps, senders = (
        repeat(column[0]) if len(column) == 1 else column for column in columns
    )
    times: Iterable[int | None] = repeat(None) if time is None else check_times(time, count)
    rows = zip(data, is_bytes, topics, keys, maps, senders, times, strict=False)
    return [
        AppendedRow(name, bytes(value), plain, mark, dict(texts) if texts else None, source, t)
        for value, plain, name, mark, texts, source, t in rows
    ]
