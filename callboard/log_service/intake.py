"""The actor that appends to a node's logs what other nodes send, on a thread of its own.

What waits in its mailbox is written, then synced at once and answered; what comes meanwhile
shares the next sync: so many producers cost few syncs. Before the next sync of a slow disk is a
pause, so that producers that were answered just now take part in it again.
"""

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar, Final, NamedTuple

from cbor2 import loads

from callboard.commitlog import CommitLog, LogReader
from callboard.commitlog.errors import InvalidOption, LogError, LogFailed
from callboard.commitlog.folder import SERVED_NAME
from callboard.commitlog.log import written_here
from callboard.commitlog.producing.table import Claim, checksum_of
from callboard.kernel.actors import ExitReason, handler
from callboard.kernel.context import CallBack, SystemActor
from callboard.kernel.errors import CallboardError, NotPermitted, NotRegistered, WrongArgument
from callboard.kernel.reply import Promise
from callboard.kernel.topology import CORE_ACTOR, Overlay
from callboard.log_service.append import (
    GROUP_BYTES,
    AppendGroup,
    AppendToLog,
    OpenLogProducer,
    ProducerAppend,
    appends_of,
    check_opening,
    columns_of,
    refusal_of,
)
from callboard.log_service.log_service import Served

_log = logging.getLogger("callboard.serving")
#: What topics of callboard itself hold, which leaves do not publish.
_RESERVED: Final = "<$>"
#: Of the time that a sync took, what the next one waits for, and seconds at most.
_GATHERED: Final = 0.25
_LONGEST: Final = 0.002
#: Seconds of a sync that is not worth waiting for others.
_QUICK: Final = 0.001


class Written(NamedTuple):
    """Appends of one question that are durable after the next sync.

    Attributes:
        promise: the answer.
        told: of each append its offset, or why it is refused.
        is_group: whether the answer is a list of them.
        published: records to publish then.
    """

    promise: Promise
    told: list[Any]
    is_group: bool
    published: list[Any]


class LogIntake(SystemActor):
    """Appends to logs. What it is asked came from another node, and is checked."""

    detached: ClassVar[bool] = True

    def __init__(
        self, logs: Mapping[str, Served], overlay: Overlay, largest: int = GROUP_BYTES
    ) -> None:
        """Take appends for logs, in messages of up to so many bytes."""
        self._served = dict(logs)
        self._overlay = overlay
        self._group_bytes = min(GROUP_BYTES, largest // 2)
        #: Logs that this actor opened, since nobody here had; closed with it.
        self._own: dict[str, CommitLog] = {}
        #: Logs that are written in this process, by this actor or others.
        self._known: dict[str, CommitLog] = {}
        #: By log, what was written since the last sync: who waits, and for which offset.
        self._written: dict[str, tuple[CommitLog, list[Written]]] = {}
        self._is_syncing = False
        #: Seconds of the last sync.
        self._slowness = 0.0

    @handler
    def open_producer(self, question: OpenLogProducer) -> Any:
        """Open a producer; all that is told of it is durable."""
        try:
            check_opening(question)
            self._permit(question.log)
        except (InvalidOption, CallboardError) as error:
            _refuse(self.promise(), error)
            return None
        try:
            log = self._log(question.log)
            epoch, last, has_forgotten = log.open_producer(question.producer, question.epoch)
            log.flush()
        except LogError as error:
            return refusal_of(error)
        told = (epoch, -1 if last is None else last.number, has_forgotten)
        return (*told, self._group_bytes) if question.has_groups is True else told

    @handler
    def append(self, question: AppendToLog) -> None:
        """Append records; answered after the next sync."""
        self._append(question)

    @handler
    def append_group(self, question: AppendGroup) -> None:
        """Append records of several producers; answered after the next sync."""
        self._append(question)

    def _append(self, question: AppendToLog | AppendGroup) -> None:
        """Append what a question holds, if its asker may."""
        promise = self.promise()
        try:
            appends = appends_of(question)
            self._permit(question.log)
        except (InvalidOption, CallboardError) as error:
            _refuse(promise, error)
            return
        told, published, log = self._take(question.log, appends)
        written = Written(promise, told, type(question) is AppendGroup, published)
        if log is None or not any(type(each) is int for each in told):
            self._answer(written)
            return
        if not self._is_syncing:
            self._is_syncing = True
            self._sync_later()
        self._written.setdefault(question.log, (log, []))[1].append(written)

    def _take(
        self, name: str, appends: list[ProducerAppend]
    ) -> tuple[list[Any], list[Any], CommitLog | None]:
        """Append records; return what is told of each, what is to be published, and the log."""
        told: list[Any] = [None] * len(appends)
        claimed, places = [], []
        for at, append in enumerate(appends):
            producer, epoch, number, rows, is_published = append
            try:
                columns = columns_of(rows)
                if is_published is True:
                    self._check_published(rows)
            except LogError as error:
                told[at] = refusal_of(error)
            else:
                claim = Claim(producer, epoch, number, len(rows), checksum_of(columns))
                claimed.append((claim, columns))
                places.append(at)
        try:
            log = self._log(name)
        except LogError as error:
            return [each or refusal_of(error) for each in told], [], None
        end, published = log.end, list[Any]()
        for at, each in zip(places, log.take_all(claimed), strict=True):
            told[at] = each if isinstance(each, int) else refusal_of(each)
            if appends[at].is_published is True and isinstance(each, int) and each >= end:
                published += appends[at].rows
        return told, published, log

    def _answer(self, written: Written) -> None:
        told = written.told
        written.promise.set_result(told if written.is_group else told[0])

    def _check_published(self, rows: list[Any]) -> None:
        """Look whether records can be published here.

        Raises:
            LogFailed: there is no endpoint, or the peer has no right to publish that.
        """
        peer = self.context.sender_node
        rights = self._overlay.rights(peer)
        if self.node.context.contexts.get(CORE_ACTOR) is None:
            what = f"{self.node.name} has no endpoint: nothing can be published there"
            raise LogFailed(what)
        for topic in {row[0] for row in rows}:
            if rights and (_RESERVED in topic or not rights.permit_topic("publish", topic)):
                self._overlay.refused(peer, "publish", topic)
                what = f"no right 'publish' for {topic!r:.200}"
                raise LogFailed(what)

    def publish(self, rows: list[Any]) -> None:
        """Publish records that are durable."""
        core = self.node.context.contexts.get(CORE_ACTOR) if rows else None
        if core is not None:
            for topic, data, is_bytes, *_ in rows:
                try:
                    core.actor.publish(topic, data if is_bytes else loads(data))
                except CallboardError as error:  # the log holds what topics do not
                    _log.warning("a record is not published on %r: %s", topic, error)

    def _sync_later(self) -> None:
        """Sync behind what waits in the mailbox, after a pause where the disk is slow."""
        order = CallBack(self._sync)
        if self._slowness > _QUICK:
            self.after(min(self._slowness * _GATHERED, _LONGEST), order)
        else:
            self.context.post(order)

    def _sync(self) -> None:
        """Make durable what was written, and answer; a log that fails is opened anew."""
        written, self._written = self._written, {}
        self._is_syncing, began = False, self.now()
        for name, (log, waiting) in written.items():
            try:
                log.flush()
            except LogError as error:
                unknown = ("unknown", str(error))
                for each in waiting:
                    told = [unknown if type(one) is int else one for one in each.told]
                    self._answer(each._replace(told=told))
                self._drop(name)
            else:
                for each in waiting:
                    self._answer(each)
                    self.publish(each.published)
        self._slowness = self.now() - began

    def _log(self, name: str) -> CommitLog:
        """Return a log that can be appended to.

        Raises:
            LogError: it is served to be read only, or another process writes it.
        """
        served = self._served[name]
        if isinstance(served, CommitLog):
            return served
        if isinstance(served, LogReader):
            served = served.folder
            if not served:
                what = f"{name} is served to be read; serve its CommitLog, or its folder"
                raise LogFailed(what)
        known = self._known.get(name)  # to look for it costs more than to append
        is_own = known is not None and known is self._own.get(name)
        if known is not None and not known.may_reopen and (is_own or known.holds_lock):
            return known
        log = written_here(served)
        if log is None or log is self._own.get(name):
            self._drop(name)
            log = self._own[name] = CommitLog(served, sync="none")
        self._known[name] = log
        return log

    def _drop(self, name: str) -> None:
        """Close a log that this actor opened; one that was replaced goes on refusing."""
        known = self._own.get(name)
        if known is not None and (known.may_reopen or not known.has_failed):
            with suppress(LogError):  # it failed, which was told
                self._own.pop(name).close()

    def _permit(self, name: object) -> None:
        """Look whether a log is served to the asker.

        Raises:
            CallboardError: it is not.
        """
        peer = self.context.sender_node
        rights = self._overlay.rights(peer)
        if type(name) is not str or not SERVED_NAME.fullmatch(name):
            what = "a log's name has letters, digits and -_.+@="
            raise WrongArgument(what)
        if rights is not None and not rights.permit("append", name):
            self._overlay.refused(peer, "append", name)
            what = f"no right 'append' for {name!r:.200}"
            raise NotPermitted(what)
        if name not in self._served:
            names = [
                each for each in self._served if not rights or rights.permit("append", each)
            ]
            here = ", ".join(sorted(names)) or "none"
            text = f"no log is served as {name!r:.200} by {self.node.name}"
            what = f"{text}; those that may be appended to are: {here}"
            raise NotRegistered(what)

    def on_end(self, reason: ExitReason, detail: str) -> None:
        """Close the logs that this actor opened."""
        del reason, detail
        for name in list(self._own):
            self._drop(name)


def _refuse(promise: Promise, error: Exception) -> None:
    """Answer what is no question, or not permitted."""
    is_wrong = isinstance(error, InvalidOption)
    promise.set_exception(WrongArgument(str(error)) if is_wrong else error)
