"""Dispatch: the handler of each message type, and the methods that remote code may call.

A class is inspected once: each function marked with `@handler` is registered for the types in
the annotation of its first parameter. The handler is looked up by the class of a message, then
by the base classes of that class. The result is stored, so that later look-ups are one
dictionary access.
"""

import copy
import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar, Union, overload

from callboard.actors.envelope import INSTRUMENTATION
from callboard.actors.errors import InvalidHandler
from callboard.actors.reference import StreamQuery
from callboard.actors.signals import RUNTIMES_OWN
from callboard.support.calls import Callback, Keywords
from callboard.support.dataclass import dataclass

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__callboard_handler__"

#: Attribute of a class that simulations substitute for another one, which is its value.
STANDS_FOR: Final = "_callboard_stands_for"

_DOOR: Final = "__callboard_door__"


class _Mark(NamedTuple):
    """The arguments of `@handler(…)`."""

    is_concurrent: bool
    is_cancellable: bool
    is_read_only: bool = False


_PLAIN: Final = _Mark(is_concurrent=False, is_cancellable=True)


_UNCALLABLE: Final = frozenset({"receiveMessage", "receiveUnrecognizedMessage"})

_OPTIONAL: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@overload
def handler(function: F) -> F: ...
@overload
def handler(
    *, concurrent: bool = ..., cancellable: bool = ..., read_only: bool = ...
) -> Callable[[F], F]: ...
def handler(
    function: F | None = None,
    *,
    concurrent: bool = False,
    cancellable: bool = True,
    read_only: bool = False,
) -> F | Callable[[F], F]:
    """Mark a method as the handler of the message type in the annotation of its parameter.

    The method takes the message as its only argument. A union names several types; `object` or
    `Any` stands for all types without another handler. The result answers an ask. The method
    may be a coroutine: while it awaits, its actor handles no other message, and other actors
    continue.

    Args:
        function: the method, if the decorator is used without arguments.
        concurrent: let the actor handle other messages while this coroutine awaits; up to the
            actor's `concurrent_limit` of them may run at once.
        cancellable: cancel this coroutine at its next await when its ask was cancelled or has
            expired; otherwise it continues, and its answer is dropped.
        read_only: for a class with `may_read_only`, such as an entity: the handler persists
            nothing, and an exception in it has no effect on the actor.
    """
    argument: object = function
    if argument is not None and (isinstance(argument, type) or not _is_method(argument)):
        name = getattr(argument, "__name__", "Message")
        method = f"def {name.lower()}(self, msg: {name})"
        msg = f"@handler takes no message class: write @handler above {method}"
        raise InvalidHandler(msg)

    def mark(marked: F) -> F:
        if concurrent and not _may_await(marked):
            msg = f"{marked.__qualname__} is concurrent but awaits nothing; make it `async def`"
            raise InvalidHandler(msg)
        setattr(marked, _MARK, _Mark(concurrent, cancellable, read_only))
        return marked

    return mark if function is None else mark(function)


def _may_await(function: Callback) -> bool:
    """Return whether a function is a coroutine, or the generator of a stream."""
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def _is_method(value: object) -> bool:
    """Return whether a value is a function or a decorated one."""
    return callable(value) or isinstance(value, staticmethod | classmethod | property)


def is_handler(function: object) -> bool:
    """Return whether a function is marked with `@handler` or by a `HandlerDoor`."""
    return bool(getattr(function, _MARK, False)) or hasattr(function, _DOOR)


class HandlerEntry:
    """One handler: its function and options."""

    __slots__ = (
        "function",
        "is_cancellable",
        "is_concurrent",
        "is_coroutine",
        "is_read_only",
        "returned",
    )

    function: Callable[..., Any]
    #: The type of the latest result that was checked; results of this type need no check.
    returned: type

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        takes_actor: bool = True,
        mark: _Mark = _PLAIN,
    ) -> None:
        self.function = function if takes_actor else lambda _, message: function(message)
        self.is_coroutine = inspect.iscoroutinefunction(function)
        self.is_concurrent = mark.is_concurrent and self.is_coroutine
        self.is_cancellable = mark.is_cancellable
        self.is_read_only = mark.is_read_only
        self.returned = type(None)


@dataclass(frozen=True, slots=True)
class HandlerDoor:
    """A kind of handler that a higher layer adds, such as the subscriber of a topic.

    Attributes:
        message_type: the class of messages for this one function.
        enter: creates the entry of the function, or of its override in a subclass.
        opened: called with the cell of each new actor of the class.
    """

    message_type: type
    enter: Callable[[Callable[..., Any]], HandlerEntry]
    opened: Callable[[Any], object]

    def mark(self, function: F) -> F:
        """Mark a function, which may also handle the type of its annotation."""
        setattr(function, _DOOR, (*getattr(function, _DOOR, ()), self))
        return function


class DispatchTable(dict[type, HandlerEntry | None]):
    """The handlers of one actor class by message class; None for a class without a handler.

    `table[type(message)]` returns stored results; `__missing__` looks up the others.
    """

    def __init__(self, actor_class: type) -> None:
        super().__init__(dict.fromkeys(RUNTIMES_OWN))
        self.declared: dict[type, HandlerEntry] = {}
        #: The handlers of `StreamQuery` messages, whose answers stream.
        self.streams: dict[type, HandlerEntry] = {}
        #: Called with the cell of each new actor of this class.
        self.opened: list[Callable[[Any], object]] = []
        for name, declared in _declarations(actor_class, _DOOR).items():
            for door in getattr(declared, _DOOR):
                function = inspect.getattr_static(actor_class, name)
                self.declared[door.message_type] = door.enter(function)
                self.opened.append(door.opened)
        for name, declared in _declarations(actor_class, _MARK).items():
            function = inspect.getattr_static(actor_class, name)
            if callable(function):
                entry = HandlerEntry(function, mark=getattr(declared, _MARK))
                for message_type in _message_types(actor_class, declared):
                    self._of(message_type)[message_type] = entry

    def _of(self, message_type: type) -> dict[type, HandlerEntry]:
        """Return the handlers that a message type belongs to."""
        return self.streams if issubclass(message_type, StreamQuery) else self.declared

    def stream_handler(self, query_type: type) -> Callback | None:
        """Return the handler of a stream query; None if there is none."""
        entries = (self.streams[kind] for kind in query_type.__mro__ if kind in self.streams)
        entry = next(entries, None)
        return None if entry is None else entry.function

    @classmethod
    def of_functions(cls, functions: Mapping[Any, Any]) -> "DispatchTable":
        """Create a table of functions that take only the message, such as bound methods."""
        table = cls(object)
        for message_type, function in functions.items():
            if not isinstance(message_type, type) or not callable(function):
                msg = f"{message_type!r}: {function!r} is not a message class with a function"
                raise InvalidHandler(msg)
            table._of(message_type)[message_type] = HandlerEntry(function, takes_actor=False)
        return table

    @classmethod
    def of_object(cls, handlers: object) -> "DispatchTable":
        """Create a table of an object's own methods that are marked with `@handler`."""
        class_table = cls(type(handlers))
        declared = {**class_table.declared, **class_table.streams}
        if not declared:
            msg = f"{type(handlers).__qualname__} has no method marked with @handler"
            raise InvalidHandler(msg)
        bound = {kind: types.MethodType(e.function, handlers) for kind, e in declared.items()}
        table = cls.of_functions(bound)
        for kind, entry in table.declared.items():
            entry.is_concurrent = declared[kind].is_concurrent
            entry.is_cancellable = declared[kind].is_cancellable
        return table

    def __missing__(self, message_type: type) -> HandlerEntry | None:
        declared = self.declared
        if self.streams and self.stream_handler(message_type) is not None:
            self[message_type] = None  # opened by `StreamRequest` only
            return None
        entries = (declared[kind] for kind in message_type.__mro__ if kind in declared)
        entry = next(entries, None)
        if entry is not None and INSTRUMENTATION.spans is not None:
            entry = copy.copy(entry)
            entry.function = INSTRUMENTATION.spans.around(
                entry.function, awaits=entry.is_coroutine
            )
        self[message_type] = entry
        return entry


def _declarations(actor_class: type, mark: str) -> dict[str, Callable[..., Any]]:
    """Return the functions of a class that have a mark, by name.

    A function that overrides a marked one counts as marked. Base classes are visited first, so
    that the functions of subclasses replace theirs.
    """
    marked: dict[str, Callable[..., Any]] = {}
    for kind in reversed(actor_class.__mro__):
        for name, value in vars(kind).items():
            declared = marked.pop(name, None)
            if getattr(value, mark, False):
                marked[name] = value
            elif declared is not None:
                marked[name] = declared
    return marked


def check_handlers(actor_class: type) -> None:
    """Check the handlers that a class defines.

    An annotation may name a class that its module defines later; it is resolved at the first
    spawn.

    Raises:
        InvalidHandler: a handler does not declare its messages, or two handlers of this class
            declare the same.
    """
    handlers: dict[type, Callable[..., Any]] = {}
    for name, function in vars(actor_class).items():
        _refuse_shape(f"{actor_class.__qualname__}.{name}", function)
        mark = getattr(function, _MARK, None)
        if mark:
            owner, name = _parameter(actor_class, function)
            if mark.is_read_only and not getattr(actor_class, "may_read_only", False):
                msg = f"{owner} is read_only, which an actor does not support; remove it"
                raise InvalidHandler(msg)
            if mark.is_concurrent and getattr(actor_class, "may_read_only", False):
                msg = f"{owner} is concurrent; handlers of an entity run one after the other"
                raise InvalidHandler(msg)
            try:
                hints = typing.get_type_hints(function)
            except Exception:  # noqa: BLE001, S112  # evaluates any expression; done at spawn
                continue
            for kind in dict.fromkeys(types_of(hints[name], owner)):
                _refuse_generator(owner, function, kind)
                other = handlers.setdefault(kind, function)
                if other is not function:
                    msg = (
                        f"{owner} and {other.__name__} both handle {kind.__qualname__}, and "
                        "only one would be called; join them, or give one another type"
                    )
                    raise InvalidHandler(msg)


def _refuse_shape(owner: str, value: Any) -> None:
    """Refuse a marked attribute that cannot be called as a handler.

    Raises:
        InvalidHandler: the attribute is not a plain method.
    """
    inner = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
    if not getattr(inner, _MARK, getattr(value, _MARK, False)):
        return
    if isinstance(value, property | classmethod | staticmethod):
        kind = type(value).__name__
        msg = f"{owner} is a handler and a {kind}; make it a plain method (self, msg: Type)"
        raise InvalidHandler(msg)
    if owner.endswith("__"):
        msg = f"{owner} is Python's own method; give the handler another name"
        raise InvalidHandler(msg)


def _refuse_generator(owner: str, function: Callback, kind: type) -> None:
    """Refuse a generator as the handler of a message that does not open a stream.

    Raises:
        InvalidHandler: it is one.
    """
    yields = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
    if yields and not issubclass(kind, StreamQuery):
        msg = (
            f"{owner} yields, but {kind.__qualname__} is not a StreamQuery; derive it from "
            "StreamQuery and read it with ref.stream(…), or return a list"
        )
        raise InvalidHandler(msg)


def _message_types(actor_class: type, function: Callable[..., Any]) -> list[type]:
    """Return the message classes that a handler declares."""
    owner, name = _parameter(actor_class, function)
    kinds = list(types_of(hints_of(function, name)[name], owner))
    for kind in kinds:
        _refuse_generator(owner, function, kind)
    return kinds


def hints_of(function: Callable[..., Any], name: str) -> Keywords:
    """Return the annotations of a function, at least that of parameter `name`.

    Raises:
        InvalidHandler: the annotation cannot be resolved.
    """
    try:
        return typing.get_type_hints(function)
    except NameError:
        return _hints_from_frames(function, name)


def _parameter(actor_class: type, function: Callable[..., Any]) -> tuple[str, str]:
    """Return the qualified name of a handler, and the name of its message parameter."""
    owner = f"{actor_class.__qualname__}.{function.__name__}"
    parameters = list(inspect.signature(function).parameters.values())
    if len(parameters) < 2:
        msg = f"{owner} has no parameter for the message; declare it as (self, msg: Type)"
        raise InvalidHandler(msg)
    for extra in parameters[2:]:
        if extra.default is extra.empty and extra.kind not in _OPTIONAL:
            msg = f"{owner} needs {extra.name!r} besides the message; handlers get nothing else"
            raise InvalidHandler(msg)
    name = parameters[1].name
    if name not in getattr(function, "__annotations__", {}):
        msg = f"{owner}: annotate {name!r} with the message type that it handles"
        raise InvalidHandler(msg)
    return owner, name


def _hints_from_frames(function: Callable[..., Any], name: str) -> Keywords:
    """Resolve an annotation given as text with the local variables of the calling functions.

    A message class defined in a function, as in tests, is not in the namespace of its module.
    Other annotations, such as a result type imported for checkers only, are not resolved.
    """
    only = types.SimpleNamespace(
        __annotations__={
            key: hint for key, hint in function.__annotations__.items() if key == name
        }
    )
    scope: Keywords = {}
    frame = inspect.currentframe()
    while frame is not None:
        for key, value in frame.f_locals.items():
            scope.setdefault(key, value)
        frame = frame.f_back
    try:
        return typing.get_type_hints(only, inspect.unwrap(function).__globals__, scope)
    except NameError as error:
        msg = (
            f"{function.__qualname__}: the annotation cannot be resolved ({error}); "
            "define or import the message class before the actor class"
        )
        raise InvalidHandler(msg) from error


def types_of(annotation: Any, owner: str) -> typing.Iterator[type]:
    """Yield the classes of an annotation."""
    origin = typing.get_origin(annotation)
    if origin in (Union, types.UnionType):
        for part in typing.get_args(annotation):
            yield from types_of(part, owner)
    elif annotation is Any:
        yield object
    elif annotation is None:
        yield type(None)
    elif isinstance(origin, type):
        yield origin
    elif isinstance(annotation, type):
        yield vars(annotation).get(STANDS_FOR, annotation)
    else:
        msg = f"{owner}: {annotation!r} is not a class; annotate with a message class"
        raise InvalidHandler(msg)


@functools.cache
def callable_methods(actor_class: type) -> frozenset[str]:
    """Return the methods that `ref.call` and `ref.proxy()` may call.

    These are the public functions in the user's own classes. Not included are methods of
    callboard's or Thespian's classes, handlers, properties, and static or class methods. An
    attribute `remote_methods = {"name", …}` restricts them further.
    """
    names: set[str] = set()
    handlers: set[str] = set()  # an override of a handler is a handler, too
    for ancestor in reversed(actor_class.__mro__):
        module = ancestor.__module__
        if (
            ancestor is object
            or module == "callboard.actors.actor"
            or vars(ancestor).get("_is_framework", False)
            or module.startswith("thespian.")
        ):
            continue
        for name, value in vars(ancestor).items():
            if is_handler(value):
                handlers.add(name)
            if _is_callable_from_outside(name, value) and name not in handlers:
                names.add(name)
            else:
                names.discard(name)
    narrowed = getattr(actor_class, "remote_methods", None)
    return frozenset(names if narrowed is None else names & set(narrowed))


def why_not_callable(actor_class: type, method: object) -> str:
    """Return the error text for a method that `ref.call` may not call."""
    text = f"{actor_class.__name__} has no callable method {method!r}"
    if type(method) is str and is_handler(inspect.getattr_static(actor_class, method, None)):
        text += "; it is a handler: send its message with ref.ask(…) or ref.tell(…)"
    return text


def _is_callable_from_outside(name: str, value: object) -> bool:
    """Return whether an attribute is a public function, but not a handler of Thespian's."""
    return (
        inspect.isfunction(value)
        and not name.startswith(("_", "receiveMsg_"))
        and name not in _UNCALLABLE
    )


#: The table of a cell without an actor.
NO_HANDLERS: Final = DispatchTable(object)
