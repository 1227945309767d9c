"""Appending to a log of another node, with receipts.

    append() ──rows──> queue ──ask──> the node's intake ──offset, durable──> append() returns

Records are sent as they come, up to `WINDOW` of them before the first is answered, together
with those of other writers on this node (`callboard.log_service.carrier`). They stay in the
queue until then, in the order of their numbers. When the link is lost, an actor of the node
that asks links again, tells the log the producer's epoch, and sends what is in the queue once
more: the log knows by number what it has taken.
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
from callboard.log_service.carrier import AppendCarrier, Parcel, WaitingAppend, carrier_of
from callboard.log_service.node_disk import LogCaller
from callboard.support import after_fork
from callboard.support.seconds import checked_seconds

#: Appends that may wait for their receipts before further ones wait to be sent.
WINDOW: Final = 64
#: Seconds until an append gives up.
TIMEOUT: Final = 30.0
#: Seconds between attempts to reach the log, at first and at most.
_PAUSES: Final = (0.05, 1.0)
#: What is certain not to change when it is asked again.
_FINAL: Final = (NotPermitted, NotRegistered, WrongArgument, LinkError)


class _Intake(LogCaller):
    """Finds the intake of the node that has a log."""

    def begin(self, question: Any, timeout: float = 10.0) -> Future[Any] | None:
        """Put a question to the intake of the node that was linked last."""
        if self._peer is None:
            return None
        return self.intake(self._peer).ask(question, timeout)

    @property
    def node(self) -> Node:
        """The node that asks."""
        return self._node

    @property
    def address(self) -> str:
        """Where the node is that has the log."""
        return self._address

    @property
    def peer(self) -> bytes:
        """The node that has the log."""
        assert self._peer is not None
        return self._peer

    def intake(self, peer: bytes) -> ActorRef[Any]:
        """Return the intake of a node."""
        return self._node.context.ref_of(peer, LOG_INTAKE)

    def wait(self, future: Future[int]) -> int:
        """Wait for a receipt."""
        return int(self._wait(future))


class LogWriter:
    """Appends to a log of another node, and returns offsets when the records are durable there.

    Records have the numbers of a producer, as those of `CommitLog.producer`: one that is tried
    again is no double. Methods may be called from any thread; what several threads append is
    sent without waiting for receipts, in order.
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
        """Open a producer of a log; an earlier instance of it may append no more.

        Args:
            address: `basp://HOST:PORT/NAME` of a node with `serve_logs`.
            producer: Its name.
            begin: The number of the first record of a producer that the log does not know.
            token: The secret to prove; the environment's CALLBOARD_SECRET by default.
            tls: Folder with `authority.pem`, as for `LogReader`; CALLBOARD_TLS by default.
            node: The `Node` of this program that asks, with its secret and TLS; one in the
                background by default.
            timeout: Seconds after which an append gives up: then it is unknown.
            window: Appends that may wait for receipts; further ones wait for room.

        Raises:
            LogFailed: no node answers, or the node refuses.
            InvalidOption: an argument makes no sense.
        """
        checked_seconds(timeout, "timeout")
        self._timeout = timeout
        self._numbering = Numbering(producer, begin)
        self._caller = _Intake(address, token, tls, node)
        self._node = self._caller.node
        self._lock = locks.collecting_lock("log writer", 450)
        after_fork.register(self)
        self._room = threading.BoundedSemaphore(window)
        self._queue: deque[WaitingAppend] = deque()
        self._carrier: AppendCarrier | None = None
        self._attempt, self._era = 1, 0
        self._is_in_doubt = self._is_linking = False
        self._end: LogError | None = None
        self._why = ""
        largest = self._take_opening(self._caller.ask(self._question(0)))
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
        """The number of the last record that the log is known to have; None for none."""
        return self._numbering.last

    # --- appending ---

    def append(
        self,
        topic: str,
        payload: Any,
        *,
        key: Key = None,
        headers: Headers = None,
        sender: str = "",
        time: int | None = None,
        number: int | None = None,
    ) -> int:
        """Append one record; returns its offset when it is durable at the other node.

        Args:
            topic: What it is about.
            payload: As for `CommitLog.append`.
            key: Text or bytes.
            headers: Texts.
            sender: Who sent it.
            time: Nanoseconds since 1970; when it is appended by default.
            number: That of the record: the next one by default. Of a record that was taken
                before, the offset is returned and nothing is appended.

        Raises:
            ReceiptUnknown: no answer in time. Append it again with the `number` of the error.
            WrongNumber: another record has this number, or it leaves a gap.
            ProducerFenced: the producer was opened again.
            ProducerForgotten: whether it was taken can no longer be known.
            InvalidRecord: it cannot be stored.
            LogFailed: the disk there refuses, or the node; it was not appended.
            LogClosed: this, or its node, was closed.
        """
        return self._caller.wait(
            self.append_soon(
                topic,
                payload,
                key=key,
                headers=headers,
                sender=sender,
                time=time,
                number=number,
            )
        )

    async def aappend(
        self,
        topic: str,
        payload: Any,
        *,
        key: Key = None,
        headers: Headers = None,
        sender: str = "",
        time: int | None = None,
        number: int | None = None,
    ) -> int:
        """Append one record as `append` does, without blocking the loop."""
        if not self._room.acquire(blocking=False):
            loop = asyncio.get_running_loop()
            room = loop.run_in_executor(None, self._room.acquire)
            try:
                await asyncio.shield(room)
            except asyncio.CancelledError:  # the thread still waits, and takes it
                room.add_done_callback(lambda _: self._room.release())
                raise
        row = partial(_row, topic, payload, key, headers, sender, time)
        return await self._submit(row, number)

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
        """Append one record and return a future of its offset; waits only for room.

        When one is refused, those behind it in the queue are refused as well.
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
        """Append a record, and have it published by the node of the log when it is durable.

        Returns its offset. Subscribers get it at most once, as everything that is published;
        the log has it. What is tried again is published only when it is appended then.

        Raises:
            LogFailed: that node has no endpoint, or this one no right to publish that.
            LogError: as for `append`.
        """
        self._room.acquire()
        row = partial(_row, topic, value, key, headers)
        return self._caller.wait(self._submit(row, number, is_published=True))

    def append_batch(
        self,
        payloads: Sequence[Any],
        *,
        topic: str | Sequence[str],
        key: Key | Sequence[Key] = None,
        headers: Headers | Sequence[Headers] = None,
        sender: str | Sequence[str] = "",
        time: Sequence[int] | None = None,
        number: int | None = None,
    ) -> range:
        """Append a run of records, of which all are taken or none; returns their offsets.

        Raises:
            InvalidRecord: one cannot be stored, or they are more than a message holds.
            LogError: as for `append`.
        """
        self._room.acquire()
        rows = partial(
            _rows, payloads, topic=topic, key=key, headers=headers, sender=sender, time=time
        )
        first = self._caller.wait(self._submit(rows, number))
        return range(first, first + len(payloads))

    def _submit(
        self,
        encode: "partial[list[AppendedRow]]",
        number: int | None,
        *,
        is_published: bool = False,
    ) -> Future[int]:
        """Queue records and send them; room for them was taken."""
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

    def _send(self, waiting: WaitingAppend, carrier: AppendCarrier) -> None:
        """Hand records over to be sent; those without a number get the next one."""
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
        """Return whether what is to be sent with this attempt still is."""
        return attempt == self._attempt and self._end is None

    def unsent(self, waiting: WaitingAppend, error: CallboardError) -> None:
        """Let an append fail that is larger than a message, or whose node is closed."""
        with self._lock:
            self._refuse(waiting, LogFailed(f"{self._caller.text}: {error}"))

    # --- answers ---

    def take(self, parcel: Parcel, error: BaseException | None, told: Any) -> bool:
        """Take the answer to what was sent, unless it was sent again meanwhile."""
        waiting = parcel.waiting
        with self._lock:
            if waiting.attempt != parcel.attempt:
                return False
            if error is None and type(told) is int:
                assert waiting.number is not None
                self._numbering.took(waiting.number, len(waiting.rows))
                return True
            if error is None:
                self._refused(waiting, told)
            elif isinstance(error, AskTimeout):
                self._late(waiting, str(error))
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
        """Take an append off the queue."""
        with self._lock:
            if self._queue and self._queue[0] is waiting:
                self._queue.popleft()
            elif waiting in self._queue:
                self._queue.remove(waiting)

    def _late(self, waiting: WaitingAppend, why: str) -> None:
        """Give an append up whose time is over; others of its group are sent again."""
        if self._node.context.now() >= waiting.until:
            self._give_up(waiting)
        self._lose(why)

    def _refused(self, waiting: WaitingAppend, told: Any) -> None:
        """Take what the intake told instead of an offset."""
        error = error_of(told)
        if isinstance(error, ReceiptUnknown):
            self._lose(str(error))
        elif isinstance(error, ProducerFenced):
            self._end_with(error)
        else:
            self._refuse(waiting, error or LogFailed(f"{self._caller.text}: an odd answer"))

    def _refuse(self, waiting: WaitingAppend, error: LogError) -> None:
        """Let an append fail that was not taken; its number is free again."""
        if not waiting.is_given and waiting.number is not None:
            if isinstance(error, WrongNumber):
                what = f"{self._caller.text}: not appended, as a record before it was refused"
                error = LogFailed(what)
            if waiting.era == self._era:
                self._era += 1
                self._numbering.next = waiting.number
        self._settle(waiting, error)

    def _settle(self, waiting: WaitingAppend, outcome: LogError) -> None:
        """Let an append fail, unless its time is over, and forget it."""
        self.forget(waiting)
        self._lock.after(waiting.set_exception, outcome)

    def _unknown(self, waiting: WaitingAppend, why: str = "") -> LogError:
        """Return the error of an append that may have been taken, if it was sent."""
        if waiting.number is None:
            what = f"{self._caller.text}: not appended, nobody answers for {self._timeout:g} s"
            return LogFailed(f"{what}{why and f' ({why})'}")
        what = (
            f"{self._caller.text}: whether number {waiting.number} of {self.producer} was taken"
            f" is unknown after {self._timeout:g} s{why and f' ({why})'}; append it again with"
            f" number={waiting.number}"
        )
        return ReceiptUnknown(what, waiting.number)

    def _give_up(self, waiting: WaitingAppend) -> None:
        """Let an append fail whose time is over; it stays in the queue while others wait."""
        waiting.is_over = True
        self._lock.after(waiting.set_exception, self._unknown(waiting, self._why))
        if all(each.is_done or each.is_over for each in self._queue):
            self._is_in_doubt = self._is_in_doubt or any(each.attempt for each in self._queue)
            self._queue.clear()
            self._carrier = None

    def _end_with(self, error: LogError) -> None:
        """Let everything fail, now and later."""
        self._end, self._carrier = error, None
        while self._queue:
            self._settle(self._queue[0], error)

    # --- the link ---

    def _lose(self, why: str) -> None:
        """Link again; what was sent is sent once more then."""
        self._carrier, self._why = None, why or self._why
        self._attempt += 1
        if self._queue:
            self._link()

    def _link(self) -> None:
        """Wake the actor that links again."""
        if not self._is_linking:
            self._is_linking = True
            self._linker.tell(Relink())

    def _question(self, epoch: int) -> OpenLogProducer:
        return OpenLogProducer(self._caller.log, self.producer, epoch, has_groups=True)

    def _carrier_to(self, peer: bytes, largest: int) -> AppendCarrier:
        caller = self._caller
        ref = caller.intake(peer)
        return carrier_of(self._node, peer, caller.log, self._timeout, largest, ref)

    def _take_opening(self, told: Any) -> int:
        """Take what the log knows of the producer; return how large groups may be.

        Raises:
            LogError: it refuses.
        """
        if (error := error_of(told)) is not None:
            raise error
        try:
            epoch, last, has_forgotten, *groups = told
            largest = int(groups[0]) if groups else 0  # an older node takes none
            entry = ProducerEntry(self.producer, epoch, int(last), 1, 0, -1, 0, 0)
        except (TypeError, ValueError):
            what = f"{self._caller.text}: an odd answer"
            raise LogFailed(what) from None
        numbering, issued = self._numbering, self._numbering.next
        numbering.opened(
            ProducerOpening(epoch, entry if last >= 0 else None, bool(has_forgotten))
        )
        if any(each.number is not None for each in self._queue):
            numbering.next = max(numbering.next, issued)
        self._is_in_doubt = False
        return largest

    async def relink(self, actor: "_Linker") -> None:
        """Link again and send what waits, or let it fail in time; called by the actor."""
        pause, longest = _PAUSES
        while self._go_on():
            try:
                peer = await self._node.aconnect(self._caller.address, 2.0)
                epoch = 0 if self._is_in_doubt else self._numbering.epoch
                ref = self._caller.intake(peer)
                told = await ref.ask(self._question(epoch), 5.0)
                with self._lock:
                    carrier = self._carrier_to(peer, self._take_opening(told))
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
                self._why = str(error)
                await actor.sleep(pause)
                pause = min(2 * pause, longest)

    def _go_on(self) -> bool:
        """Return whether anything waits to be sent; what waited for too long fails."""
        with self._lock:
            now = self._node.context.now()
            for each in list(self._queue):
                if not (each.is_done or each.is_over) and now >= each.until:
                    self._give_up(each)
            self._is_linking = bool(self._queue)
            return self._is_linking

    def _fail(self, error: LogError) -> None:
        with self._lock:
            self._end_with(error)

    def _resend(self, carrier: AppendCarrier) -> None:
        """Send all that waits, in order."""
        self._carrier, self._is_linking = carrier, False
        for waiting in self._queue:
            self._send(waiting, carrier)

    # --- the end ---

    def flush(self) -> None:
        """Wait until each append so far has an outcome."""
        with self._lock:
            waiting = [each for each in self._queue if not each.is_done]
        for future in waiting:
            with suppress(LogError):  # told to who appended it
                self._caller.wait(future)

    @after_fork.nothing_in_copies
    def close(self) -> None:
        """Wait for outcomes, and append no more; a second call does nothing."""
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
    """To a linker: link again."""


class _Linker(SystemActor):
    """Links a writer with its log again; on the node that asks."""

    def __init__(self, writer: LogWriter) -> None:
        self._writer = writer

    @handler
    async def relink(self, _: Relink) -> None:
        """Link again, and send what waits."""
        await self._writer.relink(self)


def _row(
    topic: str,
    payload: Any,
    key: Key = None,
    headers: Headers = None,
    sender: str = "",
    time: int | None = None,
) -> list[AppendedRow]:
    """Return a record as it travels; what cannot be stored the other side refuses.

    Raises:
        InvalidRecord: the payload cannot be stored.
    """
    (data,), is_bytes, _ = encode_payloads([payload])
    texts = None if headers is None else dict(headers)
    return [AppendedRow(topic, bytes(data), is_bytes, key, texts, sender, time)]


def _rows(
    payloads: Sequence[Any],
    *,
    topic: str | Sequence[str],
    key: Key | Sequence[Key] = None,
    headers: Headers | Sequence[Headers] = None,
    sender: str | Sequence[str] = "",
    time: Sequence[int] | None = None,
) -> list[AppendedRow]:
    """Return records as they travel.

    Raises:
        InvalidRecord: one cannot be stored.
    """
    count = len(payloads)
    if not 1 <= count <= MAX_BATCH_RECORDS:
        what = f"{count:,} records of a producer at once; give 1 to {MAX_BATCH_RECORDS:,}"
        raise InvalidRecord(what)
    data, all_bytes, kinds = encode_payloads(payloads)
    is_bytes = map(bool, kinds) if kinds else repeat(all_bytes)
    named = (rows_of(column, count) for column in (topic, key, headers, sender))
    topics, keys, maps, senders = (
        repeat(column[0]) if len(column) == 1 else column for column in named
    )
    times: Iterable[int | None] = repeat(None) if time is None else check_times(time, count)
    rows = zip(data, is_bytes, topics, keys, maps, senders, times, strict=False)
    return [
        AppendedRow(name, bytes(value), plain, each, dict(texts) if texts else None, who, when)
        for value, plain, name, each, texts, who, when in rows
    ]
