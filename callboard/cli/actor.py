"""`callboard actor …`: talk to actors."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from callboard.cli.loading import load_app
from callboard.cli.options import AccessOptions, command, flag, noun, option
from callboard.cli.output import from_text, say, to_json
from callboard.cli.problem import Misuse, Problem

if TYPE_CHECKING:
    from callboard.kernel.actors import ActorRef
    from callboard.node import Node

#: What the short-lived node of these commands calls itself.
NAME: Final = "callboard actor"

#: Seconds between two looks whether a message was confirmed.
LOOK_INTERVAL: Final = 0.02

app = noun()

Address = Annotated[str, typer.Argument(metavar="ADDRESS/NAME", help="basp://HOST:PORT/NAME")]
Message = Annotated[str, typer.Argument(metavar="MESSAGE", help="JSON, or else text as it is.")]


@dataclass(frozen=True, kw_only=True)
class ActorOptions(AccessOptions):
    """What each of these commands takes."""

    timeout: float = option(10.0, "Seconds that it may take.", min=0.001)

    def show(self, value: Any) -> None:
        """Print an answer; None is printed as JSON only."""
        if self.as_json:
            say(to_json(value))
        elif value is not None:
            say(value if isinstance(value, str) else repr(value))

    @contextlib.contextmanager
    def reach(self, address: str) -> "Iterator[TimedExchange]":
        """Link with the node of an actor; what follows has to be over in time."""
        deadline = time.monotonic() + self.timeout
        with self.open_node(NAME) as node:
            ref = node.remote_actor(address, self.timeout)
            why = f"{address} did not answer within {self.timeout:g} s"
            late = Problem(why=why, step="give it longer with --timeout SECONDS")
            yield TimedExchange(node, ref, deadline, late)


@dataclass(frozen=True, kw_only=True)
class CallOptions(ActorOptions):
    """How a method is called."""

    app: Path | None = option(
        None, "File that registers the message types.", "--app", metavar="APP.py"
    )

    def load(self) -> None:
        """Load the file."""
        if self.app is not None:
            load_app(self.app)


@dataclass(frozen=True, kw_only=True)
class MessageOptions(CallOptions):
    """What a message is."""

    type_name: str = option(
        "", "Registered message type; MESSAGE holds its fields.", "--type", metavar="NAME"
    )


@dataclass(frozen=True, kw_only=True)
class StopOptions(ActorOptions):
    """How an actor is ended."""

    kill: bool = flag("Do not wait for the messages in its mailbox.", "--kill")


@command(app)
def call(
    address: Address,
    method: Annotated[str, typer.Argument(help="A public method of the actor's class.")],
    options: CallOptions,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ARGS]...", help="Each JSON, or else text as it is."),
    ] = None,
) -> None:
    """Call a method of an actor and print what it returns.

    \b
    Examples:
      callboard actor call basp://127.0.0.1:4222/till add 5
      callboard actor call basp://127.0.0.1:4222/till greet '"5"' --json
    """  # noqa: D301
    options.load()
    values = [from_text(argument) for argument in arguments or ()]
    with options.reach(address) as exchange:
        future = getattr(exchange.ref.proxy(), method)(*values)
        options.show(exchange.result(future))


@command(app)
def ask(address: Address, message: Message, options: MessageOptions) -> None:
    """Send a message to an actor and print its answer.

    \b
    Examples:
      callboard actor ask basp://127.0.0.1:4222/echo hello
      callboard actor ask basp://127.0.0.1:4222/till '{}' --type shop.Total --app shop.py
    """  # noqa: D301
    value = _read_message(message, options)
    with options.reach(address) as exchange:
        future = exchange.ref.ask(value, timeout=exchange.left())
        options.show(exchange.result(future))


@command(app)
def tell(address: Address, message: Message, options: MessageOptions) -> None:
    """Send a message to an actor, and wait until its node confirms that it arrived.

    \b
    Examples:
      callboard actor tell basp://127.0.0.1:4222/echo hello
      callboard actor tell basp://127.0.0.1:4222/till '{"by": 5}' --type shop.Add --app shop.py
    """  # noqa: D301
    value = _read_message(message, options)
    with options.reach(address) as exchange:
        exchange.ref.tell(value)
        exchange.confirm()
    if options.as_json:
        options.show({"delivered": True})


@command(app)
def stop(address: Address, options: StopOptions) -> None:
    """End an actor, behind the messages that it has, and wait until it has ended.

    Its supervisor may start it again.

    \b
    Examples:
      callboard actor stop basp://127.0.0.1:4222/till
      callboard actor stop basp://127.0.0.1:4222/till --kill --json
    """  # noqa: D301
    with options.reach(address) as exchange:
        ref = exchange.ref
        down = exchange.node.monitor(ref)
        end = ref.kill if options.kill else ref.stop
        end()
        try:
            found = down.result(exchange.left())
        except TimeoutError as error:
            step = "give it longer with --timeout SECONDS, or say --kill"
            why = f"{address} did not end within {options.timeout:g} s"
            raise Problem(why=why, step=step) from error
    if found.reason == "not_found":
        why = f"there is no actor {address}"
        raise Problem(why=why, step="callboard node ps lists those there are")
    reason = str(found.reason)
    options.show({"reason": reason} if options.as_json else f"ended: {reason}")


@dataclass(frozen=True, slots=True)
class TimedExchange:
    """One exchange with an actor, which has a time limit.

    Attributes:
        node: of the command.
        ref: the actor.
        deadline: on the monotonic clock.
        late: what is raised when it is over.
    """

    node: "Node"
    ref: "ActorRef[Any]"
    deadline: float
    late: Problem

    def left(self) -> float:
        """Return the seconds that are left."""
        return max(self.deadline - time.monotonic(), 0.001)

    def result(self, future: Any) -> Any:
        """Return a future's result, in time.

        Raises:
            Problem: it did not come.
        """
        try:
            return future.result(self.left())
        except TimeoutError as error:
            raise self.late from error

    def confirm(self) -> None:
        """Wait until the actor's node confirms what was sent.

        Raises:
            Problem: it was lost, its receiver had ended, or there was no confirmation in time.
        """
        ref = self.ref
        while (account := self.node.accounts()[ref.node_id]).in_flight:
            if time.monotonic() > self.deadline:
                raise self.late
            time.sleep(LOOK_INTERVAL)
        if account.lost:
            why = f"the message to {ref} is lost or unconfirmed"
            raise Problem(why=why, step="try again when its node is back")
        if account.dead_letters:
            raise Problem(why=f"{ref} has ended", step="see the log of its node for the reason")


def _read_message(text: str, options: MessageOptions) -> Any:
    """Return the message that a text stands for: plain, or of a registered type.

    Raises:
        Problem: nobody registered the type, or the fields do not fit.
    """
    from callboard.kernel.codec import DEFAULT_REGISTRY
    from callboard.kernel.errors import CallboardError

    options.load()
    type_name, value = options.type_name, from_text(text)
    if not type_name:
        return value
    kind = DEFAULT_REGISTRY.by_name.get(type_name)
    if kind is None:
        step = "say --app APP.py with the file that registers it"
        if options.app:
            step = "check the name"
        raise Misuse(why=f"no message type {type_name!r} is registered", step=step)
    if isinstance(value, dict) and is_dataclass(kind.cls):
        try:
            return kind.cls(**value)
        except TypeError as error:
            names = ", ".join(kind.field_names) or "none"
            text = f"the fields do not fit {type_name!r} ({error})"
            raise Misuse(why=text, step=f"its fields are: {names}") from error
    try:
        return kind.build(value)
    except CallboardError:
        raise
    except Exception as error:
        text = f"{text!r} is no {type_name!r} ({error})"
        raise Problem(why=text, step="write the fields as a JSON object") from error
