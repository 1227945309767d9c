"""Actions of the dashboard: stop actors, send, publish, write stores; each one is audited.

A dashboard without `actions=True` is read-only. Actions use the same messages as any program
linked to the cluster, so the rights of the dashboard's node apply.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from callboard.closing import on_a_thread
from callboard.kernel.codec import DEFAULT_REGISTRY
from callboard.kernel.errors import CallboardError, NotPermitted
from callboard.node import Node
from callboard.store import attach_clone
from callboard.support.dataclass import dataclass
from callboard.support.text import printable, safe_repr
from callboard.topics.hub import Hub

_AUDIT: Final = logging.getLogger("callboard.audit")

#: Seconds to wait until an actor ends, and until it answers.
END_LIMIT: Final = 5.0
ANSWER_LIMIT: Final = 10.0

#: Prefix of callboard's own message types, which are not offered to users.
_OWN: Final = "callboard."


@dataclass(frozen=True, slots=True)
class DashboardAction:
    """An action was requested through a dashboard.

    Attributes:
        who: the client's IP address.
        action: name of the action, such as `stop`.
        target: the actor, topic, store or node that it was applied to.
        outcome: `done`, or `failed:` and the reason.
    """

    who: str
    action: str
    target: str
    outcome: str


class ActionFailed(CallboardError):
    """An action failed; the text names the reason and the next step."""


class _Order(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


_TEXT: Any = Field(min_length=1, max_length=2_000)


#: A number as text: JavaScript would round a large one.
_Number = Annotated[str, Field(pattern="^[0-9]{1,19}$")]


class ActorOrder(_Order):
    """The body of `stop` and `kill`: the text of the actor's ref."""

    address: str = _TEXT


class SendOrder(_Order):
    """The body of `send`: a message of plain JSON, or the fields of a registered type."""

    address: str = _TEXT
    type: str = Field("", max_length=500)
    message: Any = None
    ask: bool = False


class PublishOrder(_Order):
    """The body of `publish`: a topic and a value."""

    topic: str = _TEXT
    value: Any = None


class PutOrder(_Order):
    """The body of `put`: a store, a key and a value; `expiry` is in seconds."""

    store: str = _TEXT
    key: Any
    value: Any = None
    expiry: float | None = Field(None, gt=0)


class JobsOrder(_Order):
    """The body of `requeue` and `discard`: a work queue, and numbers of its dead jobs."""

    queue: str = _TEXT
    jobs: list[_Number] = Field(min_length=1, max_length=1_000)


class ControlCommand(_Order):
    """The body of a lever's action: the target to pass to its function, such as a node."""

    target: str = _TEXT


#: Extra actions of the program that opened the dashboard: name → function of a target.
NodeControls = Mapping[str, Callable[[str], str]]


class Actions:
    """The actions of one dashboard."""

    def __init__(self, node: Node, levers: NodeControls | None = None) -> None:
        self._node = node
        self.levers = dict(levers or {})

    def kinds(self) -> dict[str, tuple[type[BaseModel], Callable[[Any], Any]]]:
        """Return for each action the model of its body and its handler."""
        return {
            "stop": (ActorOrder, self._stop),
            "kill": (ActorOrder, self._kill),
            "send": (SendOrder, self._send),
            "publish": (PublishOrder, self._publish),
            "put": (PutOrder, self._put),
            "requeue": (JobsOrder, self._requeue),
            "discard": (JobsOrder, self._discard),
            **{f"lever/{name}": (ControlCommand, self._lever(name)) for name in self.levers},
        }

    async def carry_out(self, name: str, order: BaseModel, user: str) -> Any:
        """Run an action; report its outcome as an event and in the audit log.

        Raises:
            CallboardError: the action failed.
        """
        values = order.model_dump()
        names = ("address", "topic", "store", "queue", "target")
        target = next((str(values[field]) for field in names if field in values), "")
        outcome = "done"
        try:
            return await self.kinds()[name][1](order)
        except CallboardError as error:
            outcome = f"failed: {error}"
            raise
        finally:
            event = DashboardAction(user, name, target[:500], outcome[:500])
            self._node.context.report(event)
            details = (user, name, printable(target[:200]), printable(outcome[:200]))
            _AUDIT.info("dashboard: %s did %s to %s: %s", *details)

    async def _stop(self, order: ActorOrder) -> Any:
        """Stop an actor after the messages in its mailbox."""
        return await self._end(order.address, lambda ref: ref.stop())

    async def _kill(self, order: ActorOrder) -> Any:
        """Kill an actor before its next message."""
        return await self._end(order.address, lambda ref: ref.kill())

    async def _end(self, address: str, end: Callable[[Any], None]) -> dict[str, str]:
        """Stop or kill an actor and wait until it has ended."""
        ref = self._node.ref(address)
        down = self._node.monitor(ref)
        end(ref)
        try:
            down_message = await asyncio.wait_for(_awaited(down), END_LIMIT)
        except TimeoutError:
            msg = f"it did not end within {END_LIMIT:g} s; kill does not wait for its mailbox"
            raise ActionFailed(msg) from None
        if down_message.reason == "unreachable":
            # A node that can be reached has refused to let us monitor the actor.
            is_refused = self._node.context.is_reachable(ref.node_id)
            reason = down_message.detail or "its node is out of reach"
            raise (NotPermitted if is_refused else ActionFailed)(reason)
        if down_message.reason == "not_found":
            msg = f"there is no actor {address}"
            raise ActionFailed(msg)
        return {"reason": str(down_message.reason)}

    async def _send(self, order: SendOrder) -> dict[str, Any]:
        """Send a message; return the answer if it is an ask."""
        ref, message = self._node.ref(order.address), message_of(order.type, order.message)
        if not order.ask:
            ref.tell(message)
            return {"sent": True}
        return {"answer": await ref.ask(message, timeout=ANSWER_LIMIT)}

    async def _publish(self, order: PublishOrder) -> dict[str, Any]:
        """Publish a value."""
        hub = Hub.of(self._node)
        pair = order.topic, order.value
        await on_a_thread(hub.publishing.publish_as, frozenset(), pair)
        return {"published": True, "nodes": len(await hub.receivers_of(order.topic))}

    async def _put(self, order: PutOrder) -> dict[str, Any]:
        """Set the value of a key through a temporary clone."""

        def put() -> bool:
            with attach_clone(Hub.of(self._node), order.store) as clone:
                if not clone.await_idle(ANSWER_LIMIT):
                    msg = f"no master of the store {safe_repr(order.store)} was found"
                    raise ActionFailed(msg)
                clone.put(order.key, order.value, order.expiry)
                return bool(clone.await_idle(ANSWER_LIMIT))

        return {"acknowledged": await on_a_thread(put)}

    async def _requeue(self, order: JobsOrder) -> dict[str, int]:
        """Make dead jobs of a work queue ready again."""
        return {"changed": await self._node.queue(order.queue).requeue(*map(int, order.jobs))}

    async def _discard(self, order: JobsOrder) -> dict[str, int]:
        """Delete dead jobs of a work queue."""
        return {"changed": await self._node.queue(order.queue).discard(*map(int, order.jobs))}

    def _lever(self, name: str) -> Callable[[ControlCommand], Any]:
        """Return the handler of a lever's action."""

        async def pull(order: ControlCommand) -> dict[str, Any]:
            return {"done": await on_a_thread(self.levers[name], order.target)}

        return pull


async def _awaited(future: Any) -> Any:
    """Await one of our futures; `wait_for` accepts only coroutines and asyncio futures."""
    return await future


def message_types() -> list[dict[str, Any]]:
    """Return the user-defined message types of this process, with their fields."""
    return [
        {"type": name, "fields": list(kind.field_names or ())}
        for name, kind in sorted(DEFAULT_REGISTRY.by_name.items())
        if not name.startswith(_OWN)
    ]


def message_of(type_name: str, value: Any) -> Any:
    """Build a message from JSON: the value itself, or an instance of a registered type.

    Raises:
        ActionFailed: the type is not registered here, or the fields do not fit.
    """
    if not type_name:
        return value
    kind = DEFAULT_REGISTRY.by_name.get(type_name)
    if kind is None:
        name = safe_repr(type_name)
        msg = f"no message type {name} is registered here; name its file with --app"
        raise ActionFailed(msg)
    try:
        if isinstance(value, dict) and is_dataclass(kind.cls):
            return kind.cls(**value)
        return kind.build(value)
    except Exception as error:  # the class is a user's
        names = ", ".join(kind.field_names or ()) or "none"
        msg = f"the fields do not fit {safe_repr(type_name)} ({error}); its fields are: {names}"
        raise ActionFailed(msg) from error
