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

from callboard.actors.actor import Promise
from callboard.actors.dispatch import handler
from callboard.actors.errors import CallboardError, NotRegistered, WrongArgument
from callboard.actors.exit_reason import ExitReason
from callboard.actors.system_actor import CallBack, SystemActor
from callboard.basp.header import CORE_ACTOR
from callboard.commitlog import CommitLog, LogReader
from callboard.commitlog.errors import LogError, LogFailed
from callboard.commitlog.log import written_here
from callboard.commitlog.producing.table import Claim, checksum_of
from callboard.proxies.errors import NotPermitted
from callboard.proxies.overlay import Overlay
from callboard.serving.append import (
    AppendQuestion,
    AppendToLog,
    OpenLogProducer,
    columns_of,
    objection_to,
    refusal_of,
)
from callboard.serving.log_service import Served

_log = logging.getLogger("callboard.serving")
#: What topics of callboard itself hold, which leaves do not publish.
_RESERVED: Final = "<$>"
#: Of the time that a sync took, what the next one waits for, and seconds at most.
_GATHERED: Final = 0.25
_LONGEST: Final = 0.002
#: Seconds of a sync that is not worth waiting for others.
_QUICK: Final = 0.001


class Written(NamedTuple):
    """Records that are durable after the next sync: who waits, and what is published then."""

    promise: Promise
    offset: int
    published: list[Any]


class LogIntake(SystemActor):
    """Appends to logs. What it is asked came from another node, and is checked."""

    detached: ClassVar[bool] = True

    def __init__(self, logs: Mapping[str, Served], overlay: Overlay) -> None:
        self._served = dict(logs)
        self._overlay = overlay
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
        if self._refuses(question):
            return None
        try:
            log = self._log(question.log)
            epoch, last, has_forgotten = log.open_producer(question.producer, question.epoch)
            log.flush()
        except LogError as error:
            return refusal_of(error)
        return (epoch, -1 if last is None else last.number, has_forgotten)

    @handler
    def append(self, question: AppendToLog) -> Any:
        """Append records; answered after the next sync."""
        if self._refuses(question):
            return None
        try:
            log, columns = self._log(question.log), columns_of(question.rows)
            count, checksum = len(question.rows), checksum_of(columns)
            claim = Claim(question.producer, question.epoch, question.number, count, checksum)
            if question.is_published is True:
                self._check_published(question.rows)
            end = log.end
            offset = log.take(claim, columns)
        except LogError as error:
            return refusal_of(error)
        published = question.rows if question.is_published is True and offset >= end else []
        if not self._is_syncing:
            self._is_syncing = True
            self._sync_later()
        _, waiting = self._written.setdefault(question.log, (log, []))
        waiting.append(Written(self.promise(), offset, published))
        return None

    def _check_published(self, rows: list[Any]) -> None:
        """Look whether records can be published here.

        Raises:
            LogFailed: there is no endpoint, or the peer has no right to publish that.
        """
        peer = bytes(getattr(self.context.sender, "node", b""))
        rights = self._overlay.rights(peer)
        if self.node.runtime.contexts.get(CORE_ACTOR) is None:
            what = f"{self.node.name} has no endpoint: nothing can be published there"
            raise LogFailed(what)
        for topic in {row[0] for row in rows}:
            if rights and (_RESERVED in topic or not rights.permit_topic("publish", topic)):
                self._overlay.refused(peer, "publish", topic)
                what = f"no right 'publish' for {topic!r:.200}"
                raise LogFailed(what)

    def publish(self, rows: list[Any]) -> None:
        """Publish records that are durable."""
        core = self.node.runtime.contexts.get(CORE_ACTOR) if rows else None
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
                for each in waiting:
                    each.promise.set_result(("unknown", str(error)))
                self._drop(name)
            else:
                for each in waiting:
                    each.promise.set_result(each.offset)
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
        if known is not None and not known.has_failed and (is_own or known.holds_lock):
            return known
        log = written_here(served)
        if log is None or log is self._own.get(name):
            self._drop(name)
            log = self._own[name] = CommitLog(served, sync="none")
        self._known[name] = log
        return log

    def _drop(self, name: str) -> None:
        """Close a log that this actor opened."""
        if name in self._own:
            with suppress(LogError):  # it failed, which was told
                self._own.pop(name).close()

    def _refuses(self, question: AppendQuestion) -> bool:
        """Return whether a question is not served; then it is answered."""
        peer = bytes(getattr(self.context.sender, "node", b""))
        wrong, rights = objection_to(question), self._overlay.rights(peer)
        error: CallboardError
        if wrong:
            error = WrongArgument(wrong)
        elif rights is not None and not rights.permit("append", question.log):
            self._overlay.refused(peer, "append", question.log)
            error = NotPermitted(f"no right 'append' for {question.log!r:.200}")
        elif question.log not in self._served:
            names = [
                each for each in self._served if not rights or rights.permit("append", each)
            ]
            here = ", ".join(sorted(names)) or "none"
            text = f"no log is served as {question.log!r:.200} by {self.node.name}"
            error = NotRegistered(f"{text}; those that may be appended to are: {here}")
        else:
            return False
        self.promise().set_exception(error)
        return True

    def on_end(self, reason: ExitReason, detail: str) -> None:
        """Close the logs that this actor opened."""
        del reason, detail
        for name in list(self._own):
            self._drop(name)
