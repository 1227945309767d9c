"""The actor that appends records from other nodes to a node's logs, on its own thread.

It writes all appends in its mailbox, syncs them together and replies. Appends that arrive
during a sync share the next one, which keeps syncs few with many producers. If the disk is
slow, the actor pauses briefly before the next sync, so that the producers that just got their
receipts can take part in it.
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
from callboard.kernel.topology import CORE_ACTOR, Topology
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
#: Part of callboard's own topics, to which nodes with limited rights must not publish.
_RESERVED: Final = "<$>"
#: Pause before a sync: this fraction of the last sync's duration, and at most `_LONGEST`
#: seconds.
_GATHERED: Final = 0.25
_LONGEST: Final = 0.002
#: A sync shorter than this, in seconds, is not worth a pause to gather appends.
_QUICK: Final = 0.001


class Written(NamedTuple):
    """Appends of one request that the next sync makes durable.

    Attributes:
        promise: the reply to the request.
        told: the offset of each append, or its refusal.
        is_group: whether the reply is the whole list, else its only item.
        published: records to publish after the sync.
    """

    promise: Promise
    outcomes: list[Any]
    is_group: bool
    published: list[Any]


class AppendServer(SystemActor):
    """Appends records to logs. Requests come from other nodes, so all fields are checked."""

    detached: ClassVar[bool] = True

    def __init__(
        self, logs: Mapping[str, Served], overlay: Topology, largest: int = GROUP_BYTES
    ) -> None:
        """Accept appends to logs; `largest` is the message limit in bytes."""
        self._served = dict(logs)
        self._overlay = overlay
        self._group_bytes = min(GROUP_BYTES, largest // 2)
        #: Logs that this actor opened because this process had not; closed with the actor.
        self._own: dict[str, CommitLog] = {}
        #: Cache of open logs of this process, whether this actor opened them or not.
        self._known: dict[str, CommitLog] = {}
        #: By log name, the appends written since the last sync.
        self._written: dict[str, tuple[CommitLog, list[Written]]] = {}
        self._is_syncing = False
        #: Seconds that the last sync took.
        self._slowness = 0.0

    @handler
    def open_producer(self, question: OpenLogProducer) -> Any:
        """Open a producer; reply when its state is durable."""
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
        reply = (epoch, -1 if last is None else last.number, has_forgotten)
        return (*reply, self._group_bytes) if question.has_groups is True else reply

    @handler
    def append(self, question: AppendToLog) -> None:
        """Append records; the reply follows the next sync."""
        self._append(question)

    @handler
    def append_group(self, question: AppendGroup) -> None:
        """Append records of several producers; the reply follows the next sync."""
        self._append(question)

    def _append(self, question: AppendToLog | AppendGroup) -> None:
        """Append the records of a request, if the asker has the right."""
        promise = self.promise()
        try:
            appends = appends_of(question)
            self._permit(question.log)
        except (InvalidOption, CallboardError) as error:
            _refuse(promise, error)
            return
        outcomes, published, log = self._take(question.log, appends)
        written = Written(promise, outcomes, type(question) is AppendGroup, published)
        if log is None or not any(type(outcome) is int for outcome in outcomes):
            self._answer(written)
            return
        if not self._is_syncing:
            self._is_syncing = True
            self._sync_later()
        self._written.setdefault(question.log, (log, []))[1].append(written)

    def _take(
        self, name: str, appends: list[ProducerAppend]
    ) -> tuple[list[Any], list[Any], CommitLog | None]:
        """Append records; return an outcome per append, rows to publish, and the log.

        An outcome is an offset or a refusal. The log is None if it cannot be opened.
        """
        outcomes: list[Any] = [None] * len(appends)
        claimed, places = [], []
        for index, append in enumerate(appends):
            producer, epoch, number, rows, is_published = append
            try:
                columns = columns_of(rows)
                if is_published is True:
                    self._check_published(rows)
            except LogError as error:
                outcomes[index] = refusal_of(error)
            else:
                claim = Claim(producer, epoch, number, len(rows), checksum_of(columns))
                claimed.append((claim, columns))
                places.append(index)
        try:
            log = self._log(name)
        except LogError as error:
            return [outcome or refusal_of(error) for outcome in outcomes], [], None
        end, published = log.end, list[Any]()
        for index, result in zip(places, log.take_all(claimed), strict=True):
            outcomes[index] = result if isinstance(result, int) else refusal_of(result)
            # an offset below `end` is of a repeated append, which was published before
            is_new = isinstance(result, int) and result >= end
            if appends[index].is_published is True and is_new:
                published += appends[index].rows
        return outcomes, published, log

    def _answer(self, written: Written) -> None:
        outcomes = written.outcomes
        written.promise.set_result(outcomes if written.is_group else outcomes[0])

    def _check_published(self, rows: list[Any]) -> None:
        """Check that the peer may publish records, and that this node can.

        Raises:
            LogFailed: this node lacks an endpoint, or the peer lacks the right.
        """
        peer = self.context.sender_node
        rights = self._overlay.rights(peer)
        if self.node.context.contexts.get(CORE_ACTOR) is None:
            msg = f"{self.node.name} cannot publish records without an endpoint"
            raise LogFailed(msg)
        for topic in {row[0] for row in rows}:
            if rights and (_RESERVED in topic or not rights.permit_topic("publish", topic)):
                self._overlay.refused(peer, "publish", topic)
                msg = f"no right 'publish' for {topic!r:.200}"
                raise LogFailed(msg)

    def publish(self, rows: list[Any]) -> None:
        """Publish durable records."""
        core = self.node.context.contexts.get(CORE_ACTOR) if rows else None
        if core is not None:
            for topic, data, is_bytes, *_ in rows:
                try:
                    core.actor.publish(topic, data if is_bytes else loads(data))
                except CallboardError as error:  # e.g. a topic that is valid only in a log
                    _log.warning("a record is not published on %r: %s", topic, error)

    def _sync_later(self) -> None:
        """Schedule a sync after the messages in the mailbox; pause first on a slow disk."""
        order = CallBack(self._sync)
        if self._slowness > _QUICK:
            self.after(min(self._slowness * _GATHERED, _LONGEST), order)
        else:
            self.context.post(order)

    def _sync(self) -> None:
        """Sync all logs with new appends and reply; drop a failed log, to open it anew."""
        written, self._written = self._written, {}
        self._is_syncing, started = False, self.now()
        for name, (log, waiting) in written.items():
            try:
                log.flush()
            except LogError as error:
                unknown = ("unknown", str(error))
                for request in waiting:
                    outcomes = [
                        unknown if type(outcome) is int else outcome
                        for outcome in request.outcomes
                    ]
                    self._answer(request._replace(outcomes=outcomes))
                self._drop(name)
            else:
                for request in waiting:
                    self._answer(request)
                    self.publish(request.published)
        self._slowness = self.now() - started

    def _log(self, name: str) -> CommitLog:
        """Return a log that is open for appending.

        Raises:
            LogError: the log is served read-only, or another process writes it.
        """
        served = self._served[name]
        if isinstance(served, CommitLog):
            return served
        if isinstance(served, LogReader):
            served = served.folder
            if not served:
                msg = f"{name} is served read-only; serve its CommitLog or its folder"
                raise LogFailed(msg)
        log_ = self._known.get(name)  # a search costs more than an append
        is_own = log_ is not None and log_ is self._own.get(name)
        if log_ is not None and not log_.may_reopen and (is_own or log_.holds_lock):
            return log_
        log = written_here(served)
        if log is None or log is self._own.get(name):
            self._drop(name)
            log = self._own[name] = CommitLog(served, sync="none")
        self._known[name] = log
        return log

    def _drop(self, name: str) -> None:
        """Close a log that this actor opened.

        A log whose folder was replaced stays open and refuses appends: records that it has
        acknowledged may be missing in the log that is there now.
        """
        log = self._own.get(name)
        if log is not None and (log.may_reopen or not log.has_failed):
            with suppress(LogError):  # its failure was reported already
                self._own.pop(name).close()

    def _permit(self, name: object) -> None:
        """Check that a log exists here and that the asker may append to it.

        Raises:
            CallboardError: the log does not exist, or the asker lacks the right.
        """
        peer = self.context.sender_node
        rights = self._overlay.rights(peer)
        if type(name) is not str or not SERVED_NAME.fullmatch(name):
            msg = "a log name must consist of letters, digits and -_.+@="
            raise WrongArgument(msg)
        if rights is not None and not rights.permit("append", name):
            self._overlay.refused(peer, "append", name)
            msg = f"no right 'append' for {name!r:.200}"
            raise NotPermitted(msg)
        if name not in self._served:
            names = [log for log in self._served if not rights or rights.permit("append", log)]
            available = ", ".join(sorted(names)) or "none"
            text = f"no log is served as {name!r:.200} by {self.node.name}"
            msg = f"{text}; the logs that you may append to are: {available}"
            raise NotRegistered(msg)

    def on_end(self, reason: ExitReason, detail: str) -> None:
        """Close the logs that this actor opened."""
        del reason, detail
        for name in list(self._own):
            self._drop(name)


def _refuse(promise: Promise, error: Exception) -> None:
    """Reply with an error to a request that is malformed or not permitted."""
    is_wrong = isinstance(error, InvalidOption)
    promise.set_exception(WrongArgument(str(error)) if is_wrong else error)
