"""What users write: modules.

class Doubler(Module):
    def receive(self, message):
        self.publish(message.content * 2, message.properties)

@module
def shout(message):
    return message.content.upper()
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast, overload

from callboard.gateway.message import Message

if TYPE_CHECKING:
    from actors.reference import ActorRef

__all__ = ["Cancellable", "Module", "Outlet", "bind", "module"]


class Cancellable(Protocol):
    """What can be taken back."""

    def cancel(self) -> None:
        """Take it back."""


class Outlet(Protocol):
    """What a module's actor does for it."""

    name: str

    @property
    def ref(self) -> "ActorRef[Any]":
        """The module's actor."""

    @property
    def node(self) -> Any:
        """The node that it lives on."""

    def publish(self, message: Message) -> None:
        """Hand a message to all that are linked; from any thread."""

    def after(self, seconds: float, callback: Callable[[], object]) -> Cancellable:
        """Call back in the module's own turn."""

    def every(self, seconds: float, callback: Callable[[], object]) -> Cancellable:
        """Call back again and again in the module's own turn."""

    def fail(self, error: BaseException) -> None:
        """End the module's actor; from any thread."""


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

        Links are not there yet: what is published here, nobody receives.
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
    def me(self) -> "ActorRef[Any]":
        """The module's actor, to be monitored, or told to others."""
        return self._outlet.ref

    @property
    def node(self) -> Any:
        """The node that the module lives on."""
        return self._outlet.node

    def publish(
        self,
        content: Any,
        properties: Mapping[str, str] | None = None,
    ) -> None:
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
        self._outlet.publish(content)

    def after(self, seconds: float, callback: Callable[[], object]) -> Cancellable:
        """Call a function once in `seconds`, never while `receive` runs."""
        return self._outlet.after(seconds, callback)

    def every(self, seconds: float, callback: Callable[[], object]) -> Cancellable:
        """Call a function every so many seconds, never while `receive` runs."""
        return self._outlet.every(seconds, callback)

    def fail(self, error: BaseException) -> None:
        """End this module because of an error; its restart policy says what follows."""
        self._outlet.fail(error)


def bind(module: Module, outlet: Outlet) -> None:
    """Give a module its actor, before `create`."""
    module._outlet = outlet  # noqa: SLF001  # users' classes shall not meet another public name


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
