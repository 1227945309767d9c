"""Modules, as users write them.

class Doubler(Module):
    def receive(self, message):
        self.publish(message.content * 2, message.properties)

@module
def shout(message):
    return message.content.upper()
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self, cast, overload

from pydantic import ValidationError

from callboard.configuration.reading import StrictTable
from callboard.gateway.errors import InvalidArguments
from callboard.gateway.wire.message import Message
from callboard.kernel.actors import ActorRef, Reminder, handler
from callboard.kernel.checks import require
from callboard.kernel.context import CallBack, SystemActor
from callboard.kernel.errors import WrongArgument
from callboard.support.text import describe, logged

_log = logging.getLogger("callboard.gateway")


@dataclass(frozen=True, slots=True)
class EndBy:
    """To the actor of a module: end, because of this error."""

    error: BaseException


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

    #: What the module uses of the runtime.
    _actor: "ModuleActor"

    def create(self, args: Mapping[str, Any]) -> None:
        """Make ready with the configuration; what this raises, the gateway's user gets.

        Links do not exist yet: messages published here are not received.
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
        return self._actor.name

    @property
    def me(self) -> ActorRef[Any]:
        """The module's actor, to be monitored, or told to others."""
        return self._actor.me

    @property
    def node(self) -> Any:
        """The node that the module lives on."""
        return self._actor.node

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
        self._actor.hand_out(content)

    def after(self, seconds: float, callback: Callable[[], object]) -> Reminder:
        """Call a function once in `seconds`, never while `receive` runs."""
        return self._actor.after(seconds, CallBack(callback))

    def every(self, seconds: float, callback: Callable[[], object]) -> Reminder:
        """Call a function every so many seconds, never while `receive` runs."""
        return self._actor.every(seconds, CallBack(callback))

    def outage(self, error: BaseException) -> None:
        """Tell that what this module is connected to fails: once, until `recovered`.

        It is a line in the log and an event of the gateway. An `OSError` of `receive` tells
        it by itself, and the next message that is received tells the end of it.
        """
        self._actor.note_outage(error)

    def recovered(self) -> None:
        """Tell that what this module is connected to works again; once after each outage."""
        self._actor.note_outage(None)

    def fail(self, error: BaseException) -> None:
        """End this module because of an error; its restart policy says what follows."""
        self._actor.post_self(EndBy(error))


class ModuleArguments(StrictTable):
    """Arguments of a module, checked as the configuration around them is.

    A subclass has a field for each; with `Module.Arguments` set to it, mistakes are found
    before anything is started.
    """

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


class ModuleActor(SystemActor):
    """Runs a module, here for its gateway or for one on another node."""

    #: Whether an error of a callback ends the actor.
    crashes = False

    def make(
        self,
        name: str,
        factory: Callable[[], object],
        args: Mapping[str, Any],
        publish: Callable[[Message], None],
    ) -> None:
        """Make and create the module.

        Args:
            name: of the module.
            factory: makes it.
            args: for its `create`.
            publish: hands a message to all modules that are linked; from any thread.

        Raises:
            TypeError: what the factory makes is not a module.
        """
        self.name, self.hand_out = name, publish
        made = factory()
        if not isinstance(made, Module):
            msg = f"{factory!r} made {made!r}, which is no Module"
            raise WrongArgument(msg)
        made._actor = self  # noqa: SLF001  # users' classes shall not meet another public name
        made.create(args)
        self.module: Module = made

    def note_outage(self, error: BaseException | None) -> None:
        """Log that what is behind the module fails; None: it is back."""
        if error is not None:
            _log.warning("module %r: %s", self.name, describe(error))

    @handler
    def call_back(self, order: CallBack) -> None:
        """Call what the module wanted to be called."""
        with self.noted("a callback", raises=self.crashes):
            order.function()

    @handler
    def end_by(self, order: EndBy) -> None:
        """End with what a thread of the module found."""
        raise order.error

    @contextlib.contextmanager
    def noted(self, where: str, *, raises: bool = False) -> Iterator[None]:
        """Log what the module raises; `raises` raises it again."""
        try:
            yield
        except BaseException as error:
            self.note(error, where)
            if raises:
                raise

    def note(self, error: BaseException, where: str) -> None:
        """Log an error of the module."""
        text = "%s of module %r raised %s"
        logged(_log, text, where, self.name, describe(error), error=error)


class FunctionModule(Module):
    """A module made of a function: what it returns is published."""

    function: Callable[..., Any]

    def receive(self, message: Message) -> None:
        """Call the function; publish a message or bytes, or each of a list."""
        if (result := type(self).function(message)) is None:
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
        require(callable(function), "@module takes a function of a message", function)
        label = name or function.__name__
        body = {
            "function": staticmethod(function),
            "__doc__": function.__doc__,
            "__module__": function.__module__,
            "__qualname__": label,
        }
        return cast("type[Module]", type(label, (FunctionModule,), body))

    return make if function is None else make(function)
