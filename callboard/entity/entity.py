"""The class of entities: actors by key whose state outlives every process.

A handler persists events; functions marked with `@event` apply them, at once and again whenever
the entity is recovered. What an entity is in the database, and how old events are read, is its
`EntityType`.
"""

import inspect
from collections.abc import Callable
from typing import Any, ClassVar, Final, Literal, Self, TypeVar

from callboard.entity.errors import NotPersistable
from callboard.kernel.activation import (
    KEY_LIMIT,
    TYPE_NAME_LIMIT,
    Cell,
    hints_of,
    is_key,
    is_type_name,
    types_of,
)
from callboard.kernel.actors import Actor
from callboard.kernel.checks import limit as checked_limit
from callboard.kernel.checks import period as checked_period
from callboard.kernel.checks import seconds as checked_seconds
from callboard.kernel.codec import NoteDropped
from callboard.kernel.context import attached
from callboard.kernel.errors import (
    InvalidHandler,
    NotSpawnable,
    ReservedName,
    WrongArgument,
    WrongValue,
)
from callboard.support.text import safe_repr

F = TypeVar("F", bound=Callable[..., Any])

_EVENT: Final = "__callboard_event__"
_UPCAST: Final = "__callboard_upcast__"

#: Seconds without a message after which a durable entity is put away.
DEFAULT_IDLE: Final = 60.0

#: By the present name of an entity type that was renamed, the former one.
_RENAMED: Final[dict[str, str]] = {}

#: What subclasses may not redefine, besides the names of every actor.
_RESERVED: Final = frozenset({"key", "fence", "persist", "save", "remind", "forget", "context"})


def event(function: F) -> F:
    """Mark a method that applies events of the type that its parameter is annotated with.

    It changes the entity and nothing else: it is called again for each stored event when the
    entity is recovered, so it sends nothing, asks nobody and looks at no clock.
    """
    given: object = function
    if not inspect.isfunction(given):
        msg = "@event takes no arguments: write it above def on_added(self, event: Added)"
        raise InvalidHandler(msg)
    if inspect.iscoroutinefunction(function):
        msg = f"{function.__qualname__} applies events, and may not await; write `def`"
        raise InvalidHandler(msg)
    setattr(function, _EVENT, True)
    return function


def upcast(kind: str, version: int) -> Callable[[F], F]:
    """Mark a method that turns the fields of an old version of an event into the next one's.

    The same for a state that `save()` stores: `kind` is the name of the class of the state.

    `@upcast("shop.ItemAdded", 1)` above `def older(self, fields: dict[str, Any])` returns the
    fields of version 2; events are stored as version 2 from then on.

    Args:
        kind: the name under which the event or the state is registered.
        version: the one that is read; the first one is 1.
    """
    given: tuple[object, object] = kind, version
    if type(given[0]) is not str or type(given[1]) is not int or version < 1:
        example = '@upcast("shop.Added", 1)'
        msg = f"@upcast takes a name and a version, {example}, not {safe_repr(given):.80}"
        raise WrongArgument(msg)

    def mark(function: F) -> F:
        setattr(function, _UPCAST, (kind, version))
        return function

    return mark


class Entity(Actor):
    """An actor by key whose state outlives every process.

    `node.host(Cart, state="sqlite:shop.db")` lets a node run entities of a class, and
    `node.entity(Cart, "u-17")` is the ref of one, on any node. It is made when a message comes,
    from what was stored; its handlers `persist` events, and answers leave once these are
    durable. A handler that raises has written nothing, and the entity is read again.
    """

    #: On disk and on the wire; the name of the class unless it is set.
    name: ClassVar[str] = ""
    #: The former name of a type that was renamed: it stays that on disk and on the wire.
    was: ClassVar[str] = ""
    #: Of the form of snapshots: those of another version are not used.
    version: ClassVar[int] = 1
    #: Seconds without a message after which it is put away; None is 60, or never without state.
    idle: ClassVar[float | None] = None
    #: Events after which a snapshot is stored; 0 for none.
    snapshot_every: ClassVar[int] = 1000
    #: How many events of a key are kept behind its snapshot: "all", or a number.
    keep: ClassVar[int | Literal["all"]] = "all"
    #: How another node takes over: "fast", or "lease", which waits for the lease to end.
    takeover: ClassVar[Literal["fast", "lease"]] = "fast"

    #: Seconds that `activated` and `passivated` may await; None for no limit.
    hook_timeout: ClassVar[float | None] = 30.0

    #: Handlers of entities may be marked as such.
    may_read_only: ClassVar[bool] = True
    #: The names that it defines are not its users'.
    _is_framework: ClassVar[bool] = True

    #: This entity as the runtime sees it.
    context: Any

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        taken = sorted(_RESERVED & vars(cls).keys())
        if taken:
            msg = f"{cls.__qualname__} redefines {', '.join(taken)}, which every entity has"
            raise ReservedName(msg)
        _check_options(cls)
        if vars(cls).get("was"):
            _RENAMED[str(vars(cls).get("name") or cls.__name__)] = cls.was

    @classmethod
    def attach(cls, cell: Cell, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Self:
        """Make the activation of a cell; only hosts do.

        Raises:
            NotSpawnable: it was spawned.
        """
        context: Any = cell
        if not hasattr(context, "persist"):
            name = cls.__name__
            msg = f"{name} is an entity: node.host({name}, state=…), node.entity({name}, key)"
            raise NotSpawnable(msg)
        return attached(cls, context, args, kwargs)

    @classmethod
    def with_options(  # type: ignore[override]
        cls,
        *,
        idle: float | None = None,
        snapshot_every: int | None = None,
        keep: int | Literal["all"] | None = None,
        takeover: Literal["fast", "lease"] | None = None,
    ) -> type[Self]:
        """Return this class with options for one `host`; what is left out is its own."""
        given: dict[str, Any] = {
            "idle": idle,
            "snapshot_every": snapshot_every,
            "keep": keep,
            "takeover": takeover,
        }
        changed = {name: value for name, value in given.items() if value is not None}
        own = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
        made: Any = type(cls.__name__, (cls,), {"name": type_name(cls), **own, **changed})
        return made  # type: ignore[no-any-return]

    @property
    def key(self) -> str:
        """The key of this entity."""
        key: str = self.context.key
        return key

    @property
    def fence(self) -> str:
        """Names the next event of this entity: an idempotency key for effects outside.

        The same until something is persisted, wherever the entity runs, so that an effect
        which is repeated after a crash can be told from a new one.
        """
        return f"{self.context.type.name}/{self.key}/{self.context.written + 1}"

    def persist(self, event: object) -> None:
        """Apply an event, and store it when the handler returns or awaits.

        Raises:
            NotPersistable: no `@event` takes it, or this is no handler that may write.
            NotSerializable: it holds something that cannot be stored.
        """
        self.context.persist(event)

    def save(self) -> None:
        """Store `self.state`, a registered dataclass, when the handler returns or awaits.

        Raises:
            NotPersistable: there is no such `state`, or this is no handler that may write.
            NotSerializable: it holds something that cannot be stored.
        """
        self.context.save()

    def remind(
        self,
        name: str,
        message: object,
        *,
        after: float | None = None,
        every: float | None = None,
    ) -> None:
        """Let a message come to this entity after a time, whatever ends or moves meanwhile.

        It is stored when the handler returns or awaits, as events are, and goes in the
        transaction of the handler that it comes to: it comes at least once, and again, later
        each time, while that handler raises. One of the same name is replaced.

        Args:
            name: of the reminder, a text of 1 to 256 bytes.
            message: what comes, as if it was told.
            after: seconds until then, by the database's clock; `every` unless it is given.
            every: seconds after which it comes again, until it is forgotten; what was missed
                meanwhile comes once.

        Raises:
            InvalidSeconds: that is no time.
            NotPersistable: the entity has no state, or this is no handler that may write.
            NotSerializable: the message cannot be stored.
            WrongArgument: neither `after` nor `every` is given, or the name is no text.
            WrongValue: the name is empty or too long.
        """
        name = checked_key(name, "reminder's name")
        period = None if every is None else checked_period(every, "every")
        delay = period if after is None else checked_seconds(after, "after")
        if delay is None:
            msg = f"remind({name!r}, …) says when: after=3600.0, or every=60.0"
            raise WrongArgument(msg)
        self.context.remind(name, message, delay, period or 0.0)

    def forget(self, name: str) -> None:
        """Take a reminder back when the handler returns or awaits; none of that name is fine.

        Raises:
            NotPersistable: the entity has no state, or this is no handler that may write.
            WrongArgument: the name is no text.
            WrongValue: the name is empty or too long.
        """
        self.context.forget(checked_key(name, "reminder's name"))

    async def activated(self) -> None:
        """Called when the entity was made or recovered, before its first message.

        Awaiting longer than `hook_timeout` ends the activation: what waits for it fails with
        `EntityUnavailable`, and the next message tries again.
        """

    async def passivated(self) -> None:
        """Called before the entity is put away; it may persist nothing more.

        Awaiting longer than `hook_timeout` cancels it; the entity is put away all the same.
        """


class EntityType:
    """What an entity class is to its host: its name, its events, how old ones are read."""

    def __init__(self, cls: type[Entity]) -> None:
        """Read a class.

        Raises:
            InvalidHandler: an `@event` does not say which events it takes, or two take one.
        """
        self.cls = cls
        self.name = type_name(cls)
        self.appliers: dict[type, Callable[[Any, Any], object]] = {}
        self._upcasts: dict[tuple[str, int], Callable[[Any, Any], Any]] = {}
        #: The latest versions of events, by kind.
        self._latest: dict[str, int] = {}
        for kind in reversed(cls.__mro__):
            own: dict[type, str] = {}
            for name, function in vars(kind).items():
                if getattr(function, _EVENT, False):
                    for taken in _event_types(cls, function):
                        if own.setdefault(taken, name) != name:
                            msg = f"{cls.__qualname__}: {own[taken]} and {name} both apply "
                            msg_0 = f"{msg}{taken.__qualname__}; only one would be called"
                            raise InvalidHandler(msg_0)
                        self.appliers[taken] = getattr(cls, name)
                elif hasattr(function, _UPCAST):
                    named, version = getattr(function, _UPCAST)
                    self._upcasts[named, version] = getattr(cls, name)
                    self._latest[named] = max(version, self._latest.get(named, 0))
        #: By kind, the latest version, and what makes an event of its fields; filled by use.
        self.builders: dict[str, tuple[int, Callable[[Any, NoteDropped], object]]] = {}
        self.snapshot_every = cls.snapshot_every
        #: Of snapshots that are read; None for all: `@upcast` changes what `save` stored.
        self.snapshot_version = cls.version if self.appliers else None

    def idle(self, *, is_kept: bool) -> float | None:
        """Return the seconds without a message until one is put away; None for never."""
        return DEFAULT_IDLE if self.cls.idle is None and is_kept else self.cls.idle

    def applier(self, event: object) -> Callable[[Any, Any], object]:
        """Return the function that applies an event.

        Raises:
            NotPersistable: there is none.
        """
        found = self.appliers.get(type(event))
        if found is not None:
            return found
        for kind in type(event).__mro__:
            if kind in self.appliers:
                return self.appliers[kind]
        what = safe_repr(event).split("(", 1)[0]
        msg = f"{self.cls.__qualname__} has no @event that takes {what:.80}; add "
        msg_0 = f"{msg}@event above def on_it(self, event: {type(event).__name__})"
        raise NotPersistable(msg_0)

    def version_of(self, *names: str) -> int:
        """Return the version of an event or state that is written: one above the last upcast.

        Args:
            names: all those of its type.
        """
        return 1 + max(self._latest.get(name, 0) for name in names)

    def saved_version(self, names: tuple[str, ...]) -> int:
        """Return the version of a state that `save` stores; 0 for the first one."""
        version = self.version_of(*names)
        return 0 if version == 1 else version

    def upcast(self, actor: Entity, names: tuple[str, ...], version: int, fields: Any) -> Any:
        """Return the fields of an old event or state as the present class has them."""
        for step in range(version, self.version_of(*names)):
            for name in names:
                change = self._upcasts.get((name, step))
                if change is not None:
                    fields = change(actor, fields)
                    break
        return fields


def type_name(cls: object) -> str:
    """Return the name of an entity type.

    Raises:
        WrongArgument: it is no class of entities.
    """
    if not isinstance(cls, type) or not issubclass(cls, Entity) or cls is Entity:
        msg = f"{safe_repr(cls):.100} is no entity class; derive one from callboard.Entity"
        raise WrongArgument(msg)
    own = vars(cls).get("was") or vars(cls).get("name")
    return own if isinstance(own, str) and own else cls.__name__


def stored_name(name: str) -> str:
    """Return the name of an entity type on disk and on the wire: the former one."""
    return _RENAMED.get(name, name)


def checked_key(key: object, what: str = "key") -> str:
    """Return what was given as a key, or as another name of 1 to 256 bytes.

    Raises:
        WrongArgument: it is no text.
        WrongValue: it is empty, too long, or no text that UTF-8 can express.
    """
    if type(key) is not str:
        msg = f"a {what} is a text, such as 'u-17', not {safe_repr(key):.80}"
        raise WrongArgument(msg)
    if not is_key(key):
        limits = f"1 to {KEY_LIMIT} bytes in UTF-8 and no NUL"
        msg = f"a {what} has {limits}; {safe_repr(key):.80} has not"
        raise WrongValue(msg)
    return key


def _event_types(cls: type, function: Callable[..., Any]) -> list[type]:
    """Return the classes of events that a function applies."""
    where = f"{cls.__qualname__}.{function.__name__}"
    names = list(inspect.signature(function).parameters)
    if len(names) != 2 or names[1] not in getattr(function, "__annotations__", {}):
        msg = f"{where} applies events; declare it as (self, event: Type)"
        raise InvalidHandler(msg)
    return list(types_of(hints_of(function, names[1])[names[1]], where))


def _check_options(cls: type[Entity]) -> None:
    """Look whether what an entity class sets can be meant.

    Raises:
        WrongArgument: an option is of another kind.
        WrongValue: an option has a value that means nothing.
    """
    own, where = vars(cls), cls.__qualname__
    for option in ("name", "was"):
        name = own.get(option, "x")
        if name and not is_type_name(name):
            msg = (
                f"{where}.{option} is a text of up to {TYPE_NAME_LIMIT} characters without / "
                f"and spaces, as it is a part of addresses, not {safe_repr(name):.80}"
            )
            raise WrongValue(msg)
    for option in ("idle", "hook_timeout"):
        if own.get(option) is not None:
            checked_limit(own[option], option)
    for option, least in (("version", 1), ("snapshot_every", 0)):
        value = own.get(option, least)
        if type(value) is not int or value < least:
            msg = f"{where}.{option} is a number from {least} on, not {safe_repr(value):.80}"
            raise WrongValue(msg)
    keep = own.get("keep", "all")
    if keep != "all" and (type(keep) is not int or keep < 0):
        msg = f'{where}.keep is "all" or a number of events, not {safe_repr(keep):.80}'
        raise WrongValue(msg)
    if own.get("takeover", "fast") not in ("fast", "lease"):
        msg = f'{where}.takeover is "fast" or "lease", not {safe_repr(own["takeover"]):.80}'
        raise WrongValue(msg)
    if own.get("detached") or own.get("mailbox") is not None:
        msg = f"{where} is an entity, which has neither detached nor mailbox; take them away"
        raise WrongValue(msg)
