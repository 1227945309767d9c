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

from callboard.arguments import require
from callboard.configuration.reading import StrictTable
from callboard.gateway.errors import InvalidArguments
from callboard.gateway.wire.message import Message
from callboard.kernel.actors import ActorRef, Reminder, handler
from callboard.kernel.context import CallBack, SystemActor
from callboard.kernel.errors import WrongArgument
from callboard.support.text import describe, logged

_log = logging.getLogger("callboard.gateway")


@dataclass(frozen=True, slots=True)
class EndBy:
    """Ends the actor of a module because of an error."""

    error: BaseException


class Module:
    """A part of a gateway that receives messages and publishes others.

    `create`, `start`, `receive`, `destroy` and the callbacks of `after` and `every` never run
    at the same time, so a module needs no locks unless it starts threads. If `receive` is a
    coroutine function, the next message waits until it is done.
    """

    #: Whether to run on a separate thread, because the module blocks for long.
    detached: ClassVar[bool] = False
    #: A pydantic model of `args`, which checks a configuration before it is applied.
    Arguments: ClassVar[Any] = None

    #: The access of the module to the runtime.
    _actor: "ModuleActor"

    def create(self, args: Mapping[str, Any]) -> None:
        """Prepare with the arguments; an exception is raised to the gateway's user.

        Links do not exist yet: messages published here are not received.
        """

    def start(self) -> None:
        """Start working: all links exist. Optional."""

    def receive(self, message: Message) -> Any:
        """Handle a message of a module that is linked to this one."""

    def destroy(self) -> None:
        """Release the resources of `create` and `start`; no message is received after that."""

    # --- for use by the module ---

    @property
    def name(self) -> str:
        """The module's name in its gateway."""
        return self._actor.name

    @property
    def me(self) -> ActorRef:
        """The module's actor, for monitoring or for other actors."""
        return self._actor.me

    @property
    def node(self) -> Any:
        """The node of the module."""
        return self._actor.node

    def publish(self, content: Any, properties: Mapping[str, str] | None = None) -> None:
        """Publish a message. Can be called from any thread.

        In `receive` it never blocks; a thread that the module has started waits for room.

        Args:
            content: bytes, or a message to be published unchanged.
            properties: texts by name; with a message they replace its properties.

        Raises:
            MailboxFull: a sink is full and has refused the message.
            TypeError: the content is not bytes, or a property is not text.
            ValueError: a property contains a NUL character.
        """
        if content.__class__ is not Message:
            content = Message(content, properties)
        elif properties is not None:
            content = Message(content.content, properties)
        self._actor.hand_out(content)

    def after(self, seconds: float, callback: Callable[[], object]) -> Reminder:
        """Call a function once after `seconds`, never while `receive` runs."""
        return self._actor.after(seconds, CallBack(callback))

    def every(self, seconds: float, callback: Callable[[], object]) -> Reminder:
        """Call a function every `seconds`, never while `receive` runs."""
        return self._actor.every(seconds, CallBack(callback))

    def outage(self, error: BaseException) -> None:
        """Report that the target or source of this module fails; once, until `recovered`.

        The report is a line in the log and an event of the gateway. An `OSError` of `receive`
        is reported automatically, and the next received message reports the recovery.
        """
        self._actor.report_outage(error)

    def recovered(self) -> None:
        """Report that the target or source of this module works again, once per outage."""
        self._actor.report_outage(None)

    def fail(self, error: BaseException) -> None:
        """End this module because of an error; its restart policy decides what happens next."""
        self._actor.post_self(EndBy(error))


class ModuleArguments(StrictTable):
    """Arguments of a module, checked like the configuration around them.

    A subclass has a field for each argument. If `Module.Arguments` is set to it, mistakes are
    found before anything is started.
    """

    @classmethod
    def read(cls, args: Mapping[str, Any]) -> Self:
        """Check arguments.

        Raises:
            InvalidArguments: the arguments have mistakes; the error lists all of them.
        """
        try:
            return cls.model_validate(dict(args))
        except ValidationError as error:
            problems = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
            names = ", ".join(cls.model_fields)
            msg = f"args: {'; '.join(problems)} (there are {names})"
            raise InvalidArguments(msg) from error


class ModuleActor(SystemActor):
    """Runs a module, for a gateway on this node or on another one."""

    #: Whether an exception of a callback ends the actor.
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
            name: the name of the module.
            factory: makes it.
            args: arguments for the module's `create`.
            publish: sends a message to all linked modules; from any thread.

        Raises:
            TypeError: the factory returns something other than a module.
        """
        self.name, self.hand_out = name, publish
        module = factory()
        if not isinstance(module, Module):
            msg = f"{factory!r} returned {module!r}, which is not a Module"
            raise WrongArgument(msg)
        module._actor = self  # noqa: SLF001  # subclasses may use any public name
        module.create(args)
        self.module: Module = module

    def report_outage(self, error: BaseException | None) -> None:
        """Log that the module's target or source fails; None: it works again."""
        if error is not None:
            _log.warning("module %r: %s", self.name, describe(error))

    @handler
    def call_back(self, order: CallBack) -> None:
        """Call a callback of the module."""
        with self.log_errors("a callback", raises=self.crashes):
            order.function()

    @handler
    def end_by(self, order: EndBy) -> None:
        """End with the error that the module has reported."""
        raise order.error

    @contextlib.contextmanager
    def log_errors(self, label: str, *, raises: bool = False) -> Iterator[None]:
        """Log exceptions of the module; `raises` raises them again."""
        try:
            yield
        except BaseException as error:
            self.log_error(error, label)
            if raises:
                raise

    def log_error(self, error: BaseException, label: str) -> None:
        """Log an exception of the module."""
        text = "%s of module %r raised %s"
        logged(_log, text, label, self.name, describe(error), error=error)


class FunctionModule(Module):
    """A module made from a function, whose results are published."""

    function: Callable[..., Any]

    def receive(self, message: Message) -> None:
        """Call the function; publish the returned message or bytes, or each one of a list."""
        if (result := type(self).function(message)) is None:
            return
        if isinstance(result, bytes | bytearray | memoryview | Message):
            self.publish(result)
            return
        for item in result:
            self.publish(item)


@overload
def module(function: Callable[[Message], Any], /) -> type[Module]: ...
@overload
def module(*, name: str) -> Callable[[Callable[[Message], Any]], type[Module]]: ...
def module(
    function: Callable[[Message], Any] | None = None, /, *, name: str = ""
) -> type[Module] | Callable[[Callable[[Message], Any]], type[Module]]:
    """Make a module class from a function.

    The function gets each message. Its result is published: a message, bytes, a list or
    generator of these, or nothing for None.
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
