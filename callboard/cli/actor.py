"""`callboard actor …`: talk to actors."""

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Self

import typer

from callboard import ActorRef, CallboardError, Node
from callboard.basp.registry import DEFAULT_REGISTRY
from callboard.cli.loading import load_app
from callboard.cli.options import AccessOptions, command, flag, noun, option
from callboard.cli.output import from_text, to_json
from callboard.cli.problem import Misuse, Problem

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
            typer.echo(to_json(value))
        elif value is not None:
            typer.echo(value if isinstance(value, str) else repr(value))


@dataclass(frozen=True, kw_only=True)
class CallOptions(ActorOptions):
    """How a method is called."""

    app: Path | None = option(
        None, "File that registers the message types.", "--app", metavar="APP.py"
    )


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
    _load(options.app)
    values = [from_text(argument) for argument in arguments or ()]
    with _Call(address, options) as under_way:
        future = getattr(under_way.ref.proxy(), method)(*values)
        options.show(under_way.result(future))


@command(app)
def ask(address: Address, message: Message, options: MessageOptions) -> None:
    """Send a message to an actor and print its answer.

    \b
    Examples:
      callboard actor ask basp://127.0.0.1:4222/echo hello
      callboard actor ask basp://127.0.0.1:4222/till '{}' --type shop.Total --app shop.py
    """  # noqa: D301
    value = _read_message(message, options)
    with _Call(address, options) as under_way:
        future = under_way.ref.ask(value, timeout=under_way.left())
        options.show(under_way.result(future))


@command(app)
def tell(address: Address, message: Message, options: MessageOptions) -> None:
    """Send a message to an actor, and wait until its node confirms that it arrived.

    \b
    Examples:
      callboard actor tell basp://127.0.0.1:4222/echo hello
      callboard actor tell basp://127.0.0.1:4222/till '{"by": 5}' --type shop.Add --app shop.py
    """  # noqa: D301
    value = _read_message(message, options)
    with _Call(address, options) as under_way:
        under_way.ref.tell(value)
        under_way.confirm()
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
    with _Call(address, options) as under_way:
        ref = under_way.ref
        down = under_way.node.monitor(ref)
        if options.kill:
            ref.kill()
        else:
            ref.stop()
        try:
            found = down.result(under_way.left())
        except TimeoutError as error:
            step = "give it longer with --timeout SECONDS, or say --kill"
            why = f"{address} did not end within {options.timeout:g} s"
            raise Problem(why=why, step=step) from error
    if found.reason == "not_found":
        raise Problem(
            why=f"there is no actor {address}", step="callboard node ps lists those there are"
        )
    reason = str(found.reason)
    options.show({"reason": reason} if options.as_json else f"ended: {reason}")


class _Call:
    """A node for one exchange with an actor, which has a time limit."""

    node: Node
    ref: ActorRef[Any]

    def __init__(self, address: str, options: ActorOptions) -> None:
        self._address = address
        self._options = options
        self._deadline = time.monotonic() + options.timeout

    def __enter__(self) -> Self:
        self.node = self._options.open_node(NAME)
        try:
            self.ref = self.node.remote_actor(self._address, self._options.timeout)
        except BaseException:
            self.node.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.node.close()

    def left(self) -> float:
        """Return the seconds that are left."""
        return max(self._deadline - time.monotonic(), 0.001)

    def result(self, future: Any) -> Any:
        """Return a future's result, in time.

        Raises:
            Problem: it did not come.
        """
        try:
            return future.result(self.left())
        except TimeoutError as error:
            raise self._too_late() from error

    def confirm(self) -> None:
        """Wait until the actor's node confirms what was sent.

        Raises:
            Problem: it was lost, its receiver had ended, or there was no confirmation in time.
        """
        ref = self.ref
        while (account := self.node.accounts()[ref.node_id]).in_flight:
            if time.monotonic() > self._deadline:
                raise self._too_late()
            time.sleep(LOOK_INTERVAL)
        if account.lost:
            raise Problem(
                why=f"the message to {ref} is lost or unconfirmed",
                step="try again when its node is back",
            )
        if account.dead_letters:
            raise Problem(why=f"{ref} has ended", step="see the log of its node for the reason")

    def _too_late(self) -> Problem:
        why = f"{self._address} did not answer within {self._options.timeout:g} s"
        return Problem(why=why, step="give it longer with --timeout SECONDS")


def _read_message(text: str, options: MessageOptions) -> Any:
    """Return the message that a text stands for: plain, or of a registered type.

    Raises:
        Problem: nobody registered the type, or the fields do not fit.
    """
    _load(options.app)
    type_name, value = options.type_name, from_text(text)
    if not type_name:
        return value
    kind = DEFAULT_REGISTRY.by_name.get(type_name)
    if kind is None:
        step = (
            "check the name"
            if options.app
            else "say --app APP.py with the file that registers it"
        )
        raise Misuse(why=f"no message type {type_name!r} is registered", step=step)
    if isinstance(value, dict) and dataclasses.is_dataclass(kind.cls):
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


def _load(app: Path | None) -> None:
    if app is not None:
        load_app(app)
