"""`callboard actor …`: send messages to actors."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from callboard.backoff import Backoff, retrying
from callboard.cli.cli_error import CliError, UsageError
from callboard.cli.loading import load_app
from callboard.cli.options import AccessOptions, command, flag, noun, option
from callboard.cli.output import from_text, say, to_json

if TYPE_CHECKING:
    from callboard.kernel.actors import ActorRef
    from callboard.node import Node

#: Name of these commands' own node.
NAME: Final = "callboard actor"

#: Seconds between checks whether a message was confirmed.
POLL_SECONDS: Final = 0.02

app = noun()

Address = Annotated[str, typer.Argument(metavar="ADDRESS/NAME", help="basp://HOST:PORT/NAME")]
Message = Annotated[str, typer.Argument(metavar="MESSAGE", help="JSON, or plain text.")]


@dataclass(frozen=True, kw_only=True)
class ActorOptions(AccessOptions):
    """Options of all these commands."""

    timeout: float = option(10.0, "Timeout in seconds.", min=0.001)

    def show(self, value: Any) -> None:
        """Print a reply; None is only printed as JSON."""
        if self.as_json:
            say(to_json(value))
        elif value is not None:
            say(value if isinstance(value, str) else repr(value))

    @contextlib.contextmanager
    def reach(self, address: str) -> "Iterator[TimedExchange]":
        """Link with the node of an actor, and yield an exchange with a time limit."""
        deadline = time.monotonic() + self.timeout
        with self.open_node(NAME) as node:
            ref = node.remote_actor(address, self.timeout)
            reason = f"{address} did not answer within {self.timeout:g} s"
            late = CliError(why=reason, step="allow more time with --timeout SECONDS")
            yield TimedExchange(node, ref, deadline, late)


@dataclass(frozen=True, kw_only=True)
class CallOptions(ActorOptions):
    """Options of a call."""

    app: Path | None = option(
        None, "File that registers the message types.", "--app", metavar="APP.py"
    )

    def load(self) -> None:
        """Load the file with the message types."""
        if self.app is not None:
            load_app(self.app)


@dataclass(frozen=True, kw_only=True)
class MessageOptions(CallOptions):
    """Type of the message."""

    type_name: str = option(
        "", "Registered message type; MESSAGE has its fields.", "--type", metavar="NAME"
    )


@dataclass(frozen=True, kw_only=True)
class StopOptions(ActorOptions):
    """Options of a stop."""

    kill: bool = flag("Discard the messages in its mailbox.", "--kill")


@command(app)
def call(
    address: Address,
    method: Annotated[str, typer.Argument(help="A public method of the actor's class.")],
    options: CallOptions,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ARGS]...", help="Each JSON, or plain text."),
    ] = None,
) -> None:
    """Call a method of an actor and print the result.

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
    """Send a message to an actor and print its reply.

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
    """Send a message to an actor, and wait until its node confirms the arrival.

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
    """Stop an actor after the messages in its mailbox, and wait until it has ended.

    Its supervisor may restart it.

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
            report = down.result(exchange.left())
        except TimeoutError as error:
            step = "allow more time with --timeout SECONDS, or use --kill"
            reason = f"{address} did not end within {options.timeout:g} s"
            raise CliError(why=reason, step=step) from error
    if report.reason == "not_found":
        reason = f"there is no actor {address}"
        raise CliError(why=reason, step="list the actors with: callboard node ps")
    reason = str(report.reason)
    options.show({"reason": reason} if options.as_json else f"ended: {reason}")


@dataclass(frozen=True, slots=True)
class TimedExchange:
    """An exchange with an actor, with a time limit.

    Attributes:
        node: the node on which the command runs.
        ref: the actor.
        deadline: the deadline on the monotonic clock.
        late: the error after the deadline.
    """

    node: "Node"
    ref: "ActorRef"
    deadline: float
    late: CliError

    def left(self) -> float:
        """Return the remaining seconds."""
        return max(self.deadline - time.monotonic(), 0.001)

    def result(self, future: Any) -> Any:
        """Return the result of a future.

        Raises:
            CliError: the time is up.
        """
        try:
            return future.result(self.left())
        except TimeoutError as error:
            raise self.late from error

    def confirm(self) -> None:
        """Wait until the actor's node confirms the message.

        Raises:
            CliError: the message was lost, its receiver had ended, or the time is up.
        """
        ref = self.ref
        for _ in retrying(Backoff.fixed(POLL_SECONDS), self.deadline - time.monotonic()):
            account = self.node.accounts()[ref.node_id]
            if not account.in_flight:
                break
        else:
            raise self.late
        if account.lost:
            reason = f"the message to {ref} is lost or unconfirmed"
            raise CliError(why=reason, step="try again when its node is back")
        if account.dead_letters:
            raise CliError(
                why=f"{ref} has ended", step="see the log of its node for the reason"
            )


def _read_message(text: str, options: MessageOptions) -> Any:
    """Return the message in a text: a plain value, or one of a registered type.

    Raises:
        CliError: the type is not registered, or the fields do not fit.
    """
    from callboard.kernel.codec import DEFAULT_REGISTRY
    from callboard.kernel.errors import CallboardError

    options.load()
    type_name, value = options.type_name, from_text(text)
    if not type_name:
        return value
    kind = DEFAULT_REGISTRY.by_name.get(type_name)
    if kind is None:
        step = "pass the file that registers it with --app APP.py"
        if options.app:
            step = "check the name"
        raise UsageError(why=f"no message type {type_name!r} is registered", step=step)
    if isinstance(value, dict) and is_dataclass(kind.cls):
        try:
            return kind.cls(**value)
        except TypeError as error:
            names = ", ".join(kind.field_names) or "none"
            text = f"the fields do not fit {type_name!r} ({error})"
            raise UsageError(why=text, step=f"its fields are: {names}") from error
    try:
        return kind.build(value)
    except CallboardError:
        raise
    except Exception as error:
        text = f"{text!r} is not a {type_name!r} ({error})"
        raise CliError(why=text, step="write the fields as a JSON object") from error
