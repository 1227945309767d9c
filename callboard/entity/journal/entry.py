"""Entries of a journal, and their decoder."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from callboard.entity.entity import Entity, EntityType
from callboard.entity.event_json import EventSerializer
from callboard.entity.state.interface import StoredEvent
from callboard.lease.errors import StateCorrupt, StateVersion
from callboard.support.dataclass import dataclass
from callboard.support.nesting import parse_json
from callboard.support.text import class_name, error_text

_EPOCH: Final = datetime.fromtimestamp(0, UTC)


class Entry(NamedTuple):
    """An event in the journal of its type.

    Attributes:
        position: In the journal: 1, 2, 3 … in the order of commits.
        key: Of the entity.
        number: Of the event among the events of its key: 1, 2, 3 …
        time: Time of the commit, by the clock of the database; in UTC.
        epoch: Of the owner that wrote it; it rises with each owner of the key's slot.
        event: The event in the current version of its class; a `RawEvent` with `raw=True`.
    """

    position: int
    key: str
    number: int
    time: datetime
    epoch: int
    event: Any

    @staticmethod
    def moment(time_ms: int) -> datetime:
        """Convert a time of the database, in milliseconds since 1970, to an entry's time."""
        return _EPOCH + timedelta(milliseconds=time_ms)


@dataclass(frozen=True, slots=True)
class RawEvent:
    """An event as it is stored, for programs without its class.

    Attributes:
        kind: The registered name of its class.
        version: The version of that class when the event was written.
        fields: The fields in JSON; values that JSON lacks are `{"$cbor": "…"}`.
    """

    kind: str
    version: int
    fields: dict[str, Any]


def raw_event(stored: StoredEvent) -> RawEvent:
    """Return a stored event with its fields in JSON.

    Raises:
        StateCorrupt: the stored event is not a JSON object.
    """
    try:
        fields = parse_json(stored.body)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        msg = (
            f"event {stored.number} of {stored.key!r} is not a JSON object: {stored.body[:100]}"
        )
        raise StateCorrupt(msg)
    return RawEvent(stored.kind, stored.version, fields)


class EntryDecoder:
    """Decodes stored events as entries, with objects of current classes or with raw fields."""

    def __init__(
        self, form: EventSerializer, type_name: str, kind: EntityType | None, *, is_raw: bool
    ) -> None:
        """Create a decoder.

        Args:
            form: serializer of events.
            type_name: the type name of the entities.
            kind: the entities' class, with its `@upcast` methods; None if unknown.
            is_raw: whether to return events as they are stored.
        """
        self.form, self._name, self._kind = form, type_name, kind
        self._is_raw = is_raw
        # Upcasts are methods, so this creates an object for calling them. It has no state, but
        # a recovery also calls upcasts before any event is applied, so they must not depend on
        # the state.
        self._reader: Any = None if kind is None else object.__new__(kind.cls)

    def entry(self, stored: StoredEvent) -> Entry:
        """Return the entry of a stored event.

        Raises:
            StateVersion: this program lacks the event's class, or has an older version of it.
            StateCorrupt: the event cannot be read.
        """
        time = Entry.moment(stored.time_ms)
        event = raw_event(stored) if self._is_raw else self._event(stored)
        return Entry(stored.position, stored.key, stored.number, time, stored.epoch, event)

    def _event(self, stored: StoredEvent) -> Any:
        """Return the event in the current version of its class."""
        kind = self.form.kind_named(stored.kind)
        label = f"event {stored.position} of {self._name} ({stored.kind}"
        if kind is None:
            msg = (
                f"{label}) has a class that is not registered in this program; import its "
                "module, or read the journal with raw=True"
            )
            raise StateVersion(msg)
        latest = 1 if self._kind is None else self._kind.version_of(*kind.names)
        if stored.version > latest:
            step = "give the class of the entities instead of its name"
            msg = (
                f"{label} of version {stored.version}) is newer than version {latest} of this "
                f"program; {step if self._kind is None else 'upgrade it'}, or read the journal "
                "with raw=True"
            )
            raise StateVersion(msg)
        fields = self.form.read(stored.body)
        if self._kind is not None and stored.version < latest:
            fields = self._upcast(self._kind, stored, kind.names, fields)
        return self.form.build(kind, fields)

    def _upcast(
        self, kind: EntityType, stored: StoredEvent, names: tuple[str, ...], fields: Any
    ) -> Any:
        """Convert the fields of an old event to the current version."""
        reader: Entity = self._reader
        try:
            return kind.upcast(reader, names, stored.version, fields)
        except Exception as error:
            msg = (
                f"@upcast of {stored.kind} raised {class_name(error)} ({error_text(error)}) in "
                "a journal, without an entity; let it use nothing but the fields"
            )
            raise StateVersion(msg) from error
