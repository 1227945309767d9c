"""The work of `callboard actor call`, `ask` and `tell`."""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from basp.registry import DEFAULT_REGISTRY
from callboard import ActorRef, CallboardError, Node
from callboard.cli.credentials import Credentials, open_node
from callboard.cli.failure import FAILED, MISUSED, Failure
from callboard.cli.loading import load_app
from callboard.cli.values import from_text

NAME: Final = "callboard actor"
"""What the short-lived node of these commands calls itself."""

LOOK_INTERVAL: Final = 0.02
"""Seconds between two looks whether a message was confirmed."""


def call_method(
    address: str,
    method: str,
    arguments: Sequence[str],
    *,
    timeout: float,
    app: Path | None,
    credentials: Credentials,
) -> Any:
    """Call a method and return its result."""
    _load(app)
    values = [from_text(argument) for argument in arguments]
    deadline = time.monotonic() + timeout
    with open_node(NAME, credentials) as node:
        ref = node.remote_actor(address, timeout)
        future = getattr(ref.proxy(), method)(*values)
        try:
            return future.result(max(deadline - time.monotonic(), 0.001))
        except TimeoutError as error:
            raise _too_late(address, timeout) from error


def ask_message(
    address: str,
    text: str,
    *,
    type_name: str,
    app: Path | None,
    timeout: float,
    credentials: Credentials,
) -> Any:
    """Ask an actor and return its answer."""
    message = read_message(text, type_name=type_name, app=app)
    deadline = time.monotonic() + timeout
    with open_node(NAME, credentials) as node:
        ref = node.remote_actor(address, timeout)
        try:
            return ref.ask(message, timeout=max(deadline - time.monotonic(), 0.001)).result()
        except TimeoutError as error:
            raise _too_late(address, timeout) from error


def tell_message(
    address: str,
    text: str,
    *,
    type_name: str,
    app: Path | None,
    timeout: float,
    credentials: Credentials,
) -> None:
    """Tell an actor, and wait until its node confirms.

    Raises:
        Failure: it was lost, its receiver had ended, or there was no confirmation in time.
    """
    message = read_message(text, type_name=type_name, app=app)
    deadline = time.monotonic() + timeout
    with open_node(NAME, credentials) as node:
        ref = node.remote_actor(address, timeout)
        ref.tell(message)
        if not _is_confirmed(node, ref, deadline):
            raise _too_late(address, timeout)


def stop_actor(address: str, *, kill: bool, timeout: float, credentials: Credentials) -> str:
    """End an actor and return the reason of its end.

    Raises:
        Failure: it had ended before, or did not end in time.
    """
    deadline = time.monotonic() + timeout
    with open_node(NAME, credentials) as node:
        ref = node.remote_actor(address, timeout)
        down = node.monitor(ref)
        if kill:
            ref.kill()
        else:
            ref.stop()
        try:
            found = down.result(max(deadline - time.monotonic(), 0.001))
        except TimeoutError as error:
            step = "give it longer with --timeout SECONDS, or say --kill"
            why = f"{address} did not end within {timeout:g} s"
            raise Failure(why=why, step=step) from error
    if found.reason == "not_found":
        raise Failure(
            why=f"there is no actor {address}", step="callboard node ps lists those there are"
        )
    return str(found.reason)


def _too_late(address: str, timeout: float) -> Failure:
    why = f"{address} did not answer within {timeout:g} s"
    return Failure(why=why, step="give it longer with --timeout SECONDS")


def _is_confirmed(node: Node, ref: ActorRef[Any], deadline: float) -> bool:
    while (account := node.accounts()[ref.node_id]).in_flight:
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_INTERVAL)
    if account.lost:
        raise Failure(
            why=f"the message to {ref} is lost or unconfirmed",
            step="try again when its node is back",
        )
    if account.dead_letters:
        raise Failure(why=f"{ref} has ended", step="see the log of its node for the reason")
    return True


def read_message(text: str, *, type_name: str, app: Path | None) -> Any:
    """Return the message that a text stands for: plain, or of a registered type.

    Raises:
        Failure: nobody registered the type, or the fields do not fit.
    """
    _load(app)
    value = from_text(text)
    if not type_name:
        return value
    kind = DEFAULT_REGISTRY.by_name.get(type_name)
    if kind is None:
        step = "check the name" if app else "say --app APP.py with the file that registers it"
        raise Failure(
            why=f"no message type {type_name!r} is registered", step=step, code=MISUSED
        )
    if isinstance(value, dict) and dataclasses.is_dataclass(kind.cls):
        try:
            return kind.cls(**value)
        except TypeError as error:
            names = ", ".join(kind.field_names) or "none"
            text = f"the fields do not fit {type_name!r} ({error})"
            raise Failure(why=text, step=f"its fields are: {names}", code=MISUSED) from error
    try:
        return kind.build(value)
    except CallboardError:
        raise
    except Exception as error:
        text = f"{text!r} is no {type_name!r} ({error})"
        raise Failure(
            why=text, step="write the fields as a JSON object", code=FAILED
        ) from error


def _load(app: Path | None) -> None:
    if app is not None:
        load_app(app)
