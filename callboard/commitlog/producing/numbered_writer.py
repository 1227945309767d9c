"""The interface of writers that number their records, for logs of this and of other nodes."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from callboard.commitlog.columns import Headers, Key

#: Topic, payload, key, headers, sender and time of a record.
RecordFields = tuple[str, Any, Key, Headers, str, int | None]

#: Topics, keys, headers, senders and times of a batch: one for all records, or one for each.
BatchFields = tuple[
    str | Sequence[str],
    Key | Sequence[Key],
    Headers | Sequence[Headers],
    str | Sequence[str],
    Sequence[int] | None,
]


class NumberedWriter(ABC):
    """Appends numbered records: durable on return, and repeated without duplicates."""

    @property
    @abstractmethod
    def last(self) -> int | None:
        """Number of the last record that is known to be in the log; None if none is."""

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
        """Append one record; return its offset when it is durable.

        Args:
            topic: Topic of the record.
            payload: As for `CommitLog.append`.
            key: Text or bytes.
            headers: Names and values, both texts.
            sender: Name of the sender.
            time: Nanoseconds since 1970; by default the current time.
            number: Number of the record; by default the next one. If a record with this number
                was appended before, its offset is returned and nothing is appended.

        Raises:
            WrongNumber: another record has this number, or the number leaves a gap.
            ProducerFenced: the producer was opened again.
            ProducerForgotten: the log can no longer tell whether it has the record.
            InvalidRecord: the record cannot be stored.
            LogFailed: the disk, or the node of the log, failed or refused; the record was not
                appended. Append again with the same number.
            ReceiptUnknown: the node of the log did not reply in time. Append again with the
                `number` of the error.
            LogClosed: the log, this writer or its node was closed.
        """
        return self._write((topic, payload, key, headers, sender, time), number)

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
        return await self._awrite((topic, payload, key, headers, sender, time), number)

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
        """Append records with consecutive offsets, either all or none; return the offsets.

        Their numbers are consecutive, from `number` on. A retry must repeat the same batch.

        Raises:
            InvalidRecord: a record cannot be stored, or there are too many for a batch.
            LogError: as for `append`.
        """
        fields = topic, key, headers, sender, time
        first = self._write_batch(payloads, fields, number)
        return range(first, first + len(payloads))

    @abstractmethod
    def _write(self, fields: RecordFields, number: int | None) -> int:
        """Append a record, and return its offset."""

    @abstractmethod
    async def _awrite(self, fields: RecordFields, number: int | None) -> int:
        """Append a record without blocking the loop, and return its offset."""

    @abstractmethod
    def _write_batch(
        self, payloads: Sequence[Any], fields: BatchFields, number: int | None
    ) -> int:
        """Append a batch, and return the offset of its first record."""
