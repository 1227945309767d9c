"""The base class of entities: actors by key whose state outlives every process.

A handler persists events. Methods marked with `@event` apply an event when it is persisted, and
again whenever the entity is recovered. `EntityType` has the facts about a class that a host
needs: its stored name, its events, and the conversions of older versions.
"""

import inspect
from collections.abc import Callable
from typing import Any, ClassVar, Final, Literal, Self, TypeVar

from callboard.arguments import limit as checked_limit
from callboard.arguments import period as checked_period
from callboard.arguments import seconds as checked_seconds
from callboard.entity.errors import NotPersistable
from callboard.kernel.activation import Cell, hints_of, types_of
from callboard.kernel.actors import Actor
from callboard.kernel.codec import NoteDropped
from callboard.kernel.context import attached
from callboard.kernel.errors import (
    InvalidHandler,
    NotSpawnable,
    ReservedName,
    WrongArgument,
    WrongValue,
)
from callboard.support.keyed_name import KEY_LIMIT, TYPE_NAME_LIMIT, is_key, is_type_name
from callboard.support.text import safe_repr

F = TypeVar("F", bound=Callable[..., Any])

_EVENT: Final = "__callboard_event__"
_UPCAST: Final = "__callboard_upcast__"

#: Seconds without a message after which a durable entity is passivated.
DEFAULT_IDLE: Final = 60.0

#: By the current name of a renamed entity type: its former name.
_RENAMED: Final[dict[str, str]] = {}

#: Names that subclasses may not redefine, in addition to the names of every actor.
_RESERVED: Final = frozenset({"key", "fence", "persist", "save", "remind", "forget", "context"})


def event(function: F) -> F:
    """Mark a method that applies the events of its parameter's annotated type.

    The method may only change the entity. When the entity is recovered, the method runs again
    for each stored event, so it must not send, ask, or read a clock.
    """
    argument: object = function
    if not inspect.isfunction(argument):
        msg = "@event takes no arguments: write it above def on_added(self, event: Added)"
        raise InvalidHandler(msg)
    if inspect.iscoroutinefunction(function):
        msg = f"{function.__qualname__} applies events, so it may not await; write `def`"
        raise InvalidHandler(msg)
    setattr(function, _EVENT, True)
    return function


def upcast(kind: str, version: int) -> Callable[[F], F]:
    """Mark a method that converts fields of an old version of an event to the next version.

    It also converts a state that `save()` stored; `kind` is then the name of the state's class.

    `@upcast("shop.ItemAdded", 1)` above `def older(self, fields: dict[str, Any])` returns the
    fields of version 2; events are stored as version 2 from then on.

    Args:
        kind: the registered name of the event or the state.
        version: the version to convert from; the first one is 1.
    """
    arguments: tuple[object, object] = kind, version
    if type(arguments[0]) is not str or type(arguments[1]) is not int or version < 1:
        example = '@upcast("shop.Added", 1)'
        msg = f"@upcast takes a name and a version, {example}, not {safe_repr(arguments):.80}"
        raise WrongArgument(msg)

    def mark(function: F) -> F:
        setattr(function, _UPCAST, (kind, version))
        return function

    return mark


class Entity(Actor):
    """An actor by key whose state outlives every process.

    `node.host(Cart, state="sqlite:shop.db")` hosts the entities of a class on a node, and
    `node.entity(Cart, "u-17")` is the ref of one, on any node. A message activates an entity
    from its stored state. Its handlers `persist` events, and their answers leave after these
    are durable. If a handler raises, its events are discarded and the entity is recovered.
    """

    #: The name on disk and on the wire; by default the name of the class.
    name: ClassVar[str] = ""
    #: The former name of a renamed type, which stays its name on disk and on the wire.
    was: ClassVar[str] = ""
    #: Version of the snapshots; a snapshot of another version is not used.
    version: ClassVar[int] = 1
    #: Seconds without a message until it is passivated; None: 60, or never without state.
    idle: ClassVar[float | None] = None
    #: Events after which a snapshot is stored; 0 for none.
    snapshot_every: ClassVar[int] = 1000
    #: Events of a key kept before its snapshot: "all", or a number.
    keep: ClassVar[int | Literal["all"]] = "all"
    #: Takeover by another node: "fast" by votes, or "lease" after the lease has ended.
    takeover: ClassVar[Literal["fast", "lease"]] = "fast"

    #: Seconds that `activated` and `passivated` may await; None for no limit.
    hook_timeout: ClassVar[float | None] = 30.0

    #: Allows `@handler(read_only=True)`.
    may_read_only: ClassVar[bool] = True
    #: Names defined by this class do not count as its users' names.
    _is_framework: ClassVar[bool] = True

    #: The cell of this entity.
    context: Any

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        reserved = ", ".join(sorted(_RESERVED & vars(cls).keys()))
        if reserved:
            msg = f"{cls.__qualname__} redefines {reserved}, reserved in entities; rename it"
            raise ReservedName(msg)
        _check_options(cls)
        if vars(cls).get("was"):
            _RENAMED[str(vars(cls).get("name") or cls.__name__)] = cls.was

    @classmethod
    def attach(cls, cell: Cell, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Self:
        """Make the actor of a cell; only hosts call this.

        Raises:
            NotSpawnable: the class was spawned like other actors.
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
        """Return this class with options for one call of `host`.

        Options that are not given keep their values.
        """
        options: dict[str, Any] = {
            "idle": idle,
            "snapshot_every": snapshot_every,
            "keep": keep,
            "takeover": takeover,
        }
        changed = {name: value for name, value in options.items() if value is not None}
        own = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
        variant: Any = type(cls.__name__, (cls,), {"name": type_name(cls), **own, **changed})
        return variant  # type: ignore[no-any-return]

    @property
    def key(self) -> str:
        """The key of this entity."""
        key: str = self.context.key
        return key

    @property
    def fence(self) -> str:
        """An idempotency key for effects outside callboard, such as a payment.

        The key names the next event of this entity. It stays the same on any node until an
        event is persisted. So if a crash makes the handler repeat the effect, the key is the
        same as in the first attempt. After a restore from a backup, the key ends with `~` and
        the number of restores.
        """
        context = self.context
        fence = f"{context.type.name}/{self.key}/{context.written + 1}"
        return f"{fence}~{context.restores}" if context.restores else fence

    def persist(self, event: object) -> None:
        """Apply an event, and store it when the handler returns or awaits.

        Raises:
            NotPersistable: no `@event` method applies it, or no handler that may write runs.
            NotSerializable: the event contains a value that cannot be stored.
        """
        self.context.persist(event)

    def save(self) -> None:
        """Store `self.state`, a registered dataclass, when the handler returns or awaits.

        Raises:
            NotPersistable: `state` is missing, or no handler that may write runs.
            NotSerializable: the state contains a value that cannot be stored.
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
        """Send a message to this entity later, even if its process has ended or it has moved.

        The reminder is stored when the handler returns or awaits, as events are. It is deleted
        in the transaction of the handler that handles the message. So the message is handled at
        least once. If its handler raises, the message arrives again, after pauses that grow. A
        reminder replaces an earlier one of the same name.

        Args:
            name: the name of the reminder, a text of 1 to 256 bytes.
            message: the message to the entity, delivered as if sent with `tell`.
            after: seconds until the message is sent, by the database's clock; by default
                `every`.
            every: seconds between repetitions, until `forget`. If several repetitions were
                missed, the message arrives once for all of them.

        Raises:
            InvalidSeconds: a time is invalid.
            NotPersistable: the type is hosted without state, or no handler that may write runs.
            NotSerializable: the message cannot be stored.
            WrongArgument: neither `after` nor `every` is given, or the name is not a text.
            WrongValue: the name is empty or too long.
        """
        name = checked_key(name, "reminder's name")
        period = None if every is None else checked_period(every, "every")
        delay = period if after is None else checked_seconds(after, "after")
        if delay is None:
            msg = f"remind({name!r}, …) needs a time: after=3600.0, or every=60.0"
            raise WrongArgument(msg)
        self.context.remind(name, message, delay, period or 0.0)

    def forget(self, name: str) -> None:
        """Delete a reminder when the handler returns or awaits; ignore an unknown name.

        Raises:
            NotPersistable: the type is hosted without state, or no handler that may write runs.
            WrongArgument: the name is not a text.
            WrongValue: the name is empty or too long.
        """
        self.context.forget(checked_key(name, "reminder's name"))

    async def activated(self) -> None:
        """Called after the entity was created or recovered, before its first message.

        If the hook awaits for longer than `hook_timeout`, the activation ends: waiting messages
        fail with `EntityUnavailable`, and the next message activates the entity again.
        """

    async def passivated(self) -> None:
        """Called before the entity is passivated; it cannot persist events.

        If it awaits longer than `hook_timeout`, it is cancelled and the entity is passivated.
        """


class EntityType:
    """An entity class as its host sees it: name, events, versions."""

    def __init__(self, cls: type[Entity]) -> None:
        """Inspect a class.

        Raises:
            InvalidHandler: an `@event` method lacks an event type, or two apply the same one.
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
                    for event_type in _event_types(cls, function):
                        if own.setdefault(event_type, name) != name:
                            msg = (
                                f"{cls.__qualname__}: {own[event_type]} and {name} both apply "
                                f"{event_type.__qualname__}; only one of them may"
                            )
                            raise InvalidHandler(msg)
                        self.appliers[event_type] = getattr(cls, name)
                elif hasattr(function, _UPCAST):
                    event_name, version = getattr(function, _UPCAST)
                    self._upcasts[event_name, version] = getattr(cls, name)
                    self._latest[event_name] = max(version, self._latest.get(event_name, 0))
        #: By kind: the latest version, and a function from fields to an event; filled by use.
        self.builders: dict[str, tuple[int, Callable[[Any, NoteDropped], object]]] = {}
        self.snapshot_every = cls.snapshot_every
        #: The version of usable snapshots; None for all: `@upcast` converts a saved state.
        self.snapshot_version = cls.version if self.appliers else None

    def idle(self, *, is_kept: bool) -> float | None:
        """Return the seconds without a message until passivation; None for never."""
        return DEFAULT_IDLE if self.cls.idle is None and is_kept else self.cls.idle

    def applier(self, event: object) -> Callable[[Any, Any], object]:
        """Return the function that applies an event.

        Raises:
            NotPersistable: the class has no `@event` method for the type.
        """
        applier = self.appliers.get(type(event))
        if applier is not None:
            return applier
        for kind in type(event).__mro__:
            if kind in self.appliers:
                return self.appliers[kind]
        label = safe_repr(event).split("(", 1)[0]
        msg = (
            f"{self.cls.__qualname__} has no @event method for {label:.80}; add "
            f"@event above def on_it(self, event: {type(event).__name__})"
        )
        raise NotPersistable(msg)

    def version_of(self, *names: str) -> int:
        """Return the version in which an event or state is written: the last upcast plus one.

        Args:
            names: all names of its type.
        """
        return 1 + max(self._latest.get(name, 0) for name in names)

    def saved_version(self, names: tuple[str, ...]) -> int:
        """Return the version of a state that `save` stores; 0 for the first version."""
        version = self.version_of(*names)
        return 0 if version == 1 else version

    def upcast(self, actor: Entity, names: tuple[str, ...], version: int, fields: Any) -> Any:
        """Convert the fields of an old event or state to the current version."""
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
        WrongArgument: `cls` is not a class of entities.
    """
    if not isinstance(cls, type) or not issubclass(cls, Entity) or cls is Entity:
        msg = f"{safe_repr(cls):.100} is not an entity class; derive one from callboard.Entity"
        raise WrongArgument(msg)
    own = vars(cls).get("was") or vars(cls).get("name")
    return own if isinstance(own, str) and own else cls.__name__


def stored_name(name: str) -> str:
    """Return the name of an entity type on disk and on the wire: its former name, if any."""
    return _RENAMED.get(name, name)


def checked_key(key: object, label: str = "key") -> str:
    """Return a valid key, or another name of 1 to 256 bytes.

    Raises:
        WrongArgument: the key is not a text.
        WrongValue: the key is empty, too long, or not valid in UTF-8.
    """
    if type(key) is not str:
        msg = f"a {label} must be a text, such as 'u-17', not {safe_repr(key):.80}"
        raise WrongArgument(msg)
    if not is_key(key):
        limits = f"1 to {KEY_LIMIT} bytes in UTF-8 and no NUL"
        msg = f"a {label} must have {limits}, not {safe_repr(key):.80}"
        raise WrongValue(msg)
    return key


def _event_types(cls: type, function: Callable[..., Any]) -> list[type]:
    """Return the event classes that a method applies."""
    qualname = f"{cls.__qualname__}.{function.__name__}"
    names = list(inspect.signature(function).parameters)
    if len(names) != 2 or names[1] not in getattr(function, "__annotations__", {}):
        msg = f"{qualname} applies events; declare it as (self, event: Type)"
        raise InvalidHandler(msg)
    return list(types_of(hints_of(function, names[1])[names[1]], qualname))


def _check_options(cls: type[Entity]) -> None:
    """Check the options of an entity class.

    Raises:
        WrongArgument: an option has a value of the wrong type.
        WrongValue: an option has an invalid value.
    """
    own, qualname = vars(cls), cls.__qualname__
    for option in ("name", "was"):
        name = own.get(option, "x")
        if name and not is_type_name(name):
            msg = (
                f"{qualname}.{option} must be a text of up to {TYPE_NAME_LIMIT} characters "
                f"without / and spaces, as it is a part of addresses, not {safe_repr(name):.80}"
            )
            raise WrongValue(msg)
    for option in ("idle", "hook_timeout"):
        if own.get(option) is not None:
            checked_limit(own[option], option)
    for option, least in (("version", 1), ("snapshot_every", 0)):
        value = own.get(option, least)
        if type(value) is not int or value < least:
            label = safe_repr(value)
            msg = f"{qualname}.{option} must be a number from {least} on, not {label:.80}"
            raise WrongValue(msg)
    keep = own.get("keep", "all")
    if keep != "all" and (type(keep) is not int or keep < 0):
        msg = f'{qualname}.keep must be "all" or a number of events, not {safe_repr(keep):.80}'
        raise WrongValue(msg)
    if own.get("takeover", "fast") not in ("fast", "lease"):
        label = safe_repr(own["takeover"])
        msg = f'{qualname}.takeover must be "fast" or "lease", not {label:.80}'
        raise WrongValue(msg)
    if own.get("detached") or own.get("mailbox") is not None:
        msg = f"{qualname} is an entity, so it has neither detached nor mailbox; remove them"
        raise WrongValue(msg)
