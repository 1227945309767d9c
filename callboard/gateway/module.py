"""Modules, as users write them.

class Doubler(Module):
    def receive(self, message):
        self.publish(message.content * 2, message.properties)

@module
def shout(message):
    return message.content.upper()
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self, cast, overload

from pydantic import BaseModel, ConfigDict, ValidationError

from callboard.actors.reference import ActorRef
from callboard.gateway.errors import InvalidArguments
from callboard.gateway.wire.message import Message


@dataclass(frozen=True, slots=True)
class CallBack:
    """To the actor of a module: call this function of the module."""

    function: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class EndBy:
    """To the actor of a module: end, because of this error."""

    error: BaseException


class Cancellable(Protocol):
    """A callback that has been asked for."""

    def cancel(self) -> None:
        """Do not call back any more."""


class Outlet(Protocol):
    """What a module uses of its actor."""

    name: str

    #: Hand a message to all modules that are linked; from any thread.
    hand_out: Callable[[Message], None]

    @property
    def me(self) -> ActorRef[Any]:
        """The module's actor."""

    @property
    def node(self) -> Any:
        """The node that the actor lives on."""

    def after(self, seconds: float, message: Any, /) -> Cancellable:
        """Let the actor have a message once."""

    def every(self, seconds: float, message: Any, /) -> Cancellable:
        """Let the actor have a message again and again."""

    def post_self(self, message: Any, /) -> None:
        """Let the actor have a message; from any thread."""


class Module:
    """A part of a gateway: it receives messages and publishes some.

    `create`, `start`, `receive`, `destroy` and what `after` and `every` call never run at the
    same time, so a module needs no locks unless it has threads of its own. Where `receive` is a
    coroutine function, the next message waits until it is done.
    """

    #: Run on a thread of its own, because it blocks for long.
    detached: ClassVar[bool] = False
    #: A pydantic model of `args`, so that a configuration is checked before it is used.
    Arguments: ClassVar[Any] = None

    _outlet: Outlet

    def create(self, args: Mapping[str, Any]) -> None:
        """Make ready with the configuration; what this raises, the gateway's user gets.

        Links do not exist yet: what is published here is not received.
        """

    def start(self) -> None:
        """Begin to work: all links are there. Optional."""

    def receive(self, message: Message) -> Any:
        """Take a message of a module that is linked to this one."""

    def destroy(self) -> None:
        """Free what `create` and `start` took; nothing is received any more."""

    # --- for the module ---

    @property
    def name(self) -> str:
        """The module's name in its gateway."""
        return self._outlet.name

    @property
    def me(self) -> ActorRef[Any]:
        """The module's actor, to be monitored, or told to others."""
        return self._outlet.me

    @property
    def node(self) -> Any:
        """The node that the module lives on."""
        return self._outlet.node

    def publish(self, content: Any, properties: Mapping[str, str] | None = None) -> None:
        """Publish a message, from any thread.

        In `receive` it never blocks; a thread of the module's own waits for room.

        Args:
            content: bytes, or a message that goes on as it is.
            properties: text by text; with a message they replace its own.

        Raises:
            MailboxFull: a sink is full and has not taken it.
            TypeError: the content is not bytes, or a property is not text.
            ValueError: a property holds a NUL character.
        """
        if content.__class__ is not Message:
            content = Message(content, properties)
        elif properties is not None:
            content = Message(content.content, properties)
        self._outlet.hand_out(content)

    def after(self, seconds: float, callback: Callable[[], object]) -> Cancellable:
        """Call a function once in `seconds`, never while `receive` runs."""
        return self._outlet.after(seconds, CallBack(callback))

    def every(self, seconds: float, callback: Callable[[], object]) -> Cancellable:
        """Call a function every so many seconds, never while `receive` runs."""
        return self._outlet.every(seconds, CallBack(callback))

    def fail(self, error: BaseException) -> None:
        """End this module because of an error; its restart policy says what follows."""
        self._outlet.post_self(EndBy(error))


class ModuleArguments(BaseModel):
    """Arguments of a module, checked as the configuration around them is.

    A subclass has a field for each; with `Module.Arguments` set to it, mistakes are found
    before anything is started.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @classmethod
    def read(cls, args: Mapping[str, Any]) -> Self:
        """Check arguments.

        Raises:
            InvalidArguments: with all mistakes.
        """
        try:
            return cls.model_validate(dict(args))
        except ValidationError as error:
            found = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
            there = ", ".join(cls.model_fields)
            msg = f"args: {'; '.join(found)} (there are {there})"
            raise InvalidArguments(msg) from error


def make_module(
    factory: Callable[[], object], args: Mapping[str, Any], outlet: Outlet
) -> Module:
    """Make a module, give it its outlet, and create it.

    Raises:
        TypeError: what the factory makes is not a module.
    """
    made = factory()
    if not isinstance(made, Module):
        msg = f"{factory!r} made {made!r}, which is no Module"
        raise TypeError(msg)
    made._outlet = outlet  # noqa: SLF001  # users' classes shall not meet another public name
    made.create(args)
    return made


class FunctionModule(Module):
    """A module made of a function: what it returns is published."""

    function: Callable[..., Any]

    def receive(self, message: Message) -> None:
        """Call the function; publish a message or bytes, or each of a list."""
        result = type(self).function(message)
        if result is None:
            return
        if isinstance(result, bytes | bytearray | memoryview | Message):
            self.publish(result)
            return
        for each in result:
            self.publish(each)


@overload
def module(function: Callable[[Message], Any], /) -> type[Module]: ...
@overload
def module(*, name: str) -> Callable[[Callable[[Message], Any]], type[Module]]: ...
def module(
    function: Callable[[Message], Any] | None = None, /, *, name: str = ""
) -> type[Module] | Callable[[Callable[[Message], Any]], type[Module]]:
    """Make a module class of a function.

    The function gets each message. What it returns is published: a message, bytes, a list or
    generator of those, or nothing for None.
    """

    def make(function: Any) -> type[Module]:
        if not callable(function):
            msg = f"@module takes a function of a message, not {function!r}"
            raise TypeError(msg)
        label = name or function.__name__
        body = {
            "function": staticmethod(function),
            "__doc__": function.__doc__,
            "__module__": function.__module__,
            "__qualname__": label,
        }
        return cast("type[Module]", type(label, (FunctionModule,), body))

    return make if function is None else make(function)
