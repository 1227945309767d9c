"""Factories, which find a handler for the BOT of a client.

The factories of this module spawn a handler for each flow, use a pool, or choose by rules. A
flow broker handles one message at a time, and calls its factory while it does. A factory that
opened or answered a flow itself would wait for messages that the broker cannot forward before
the factory returns, so this raises `FactoryDeadlock`.
"""

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final

from callboard.flow.errors import FactoryDeadlock, FlowRefused
from callboard.flow.protocol.message import Message
from callboard.flow.protocol.rules import Rule
from callboard.kernel.actors import Actor, ActorRef, Group, frozen_message
from callboard.kernel.errors import NoMembers
from callboard.kernel.reply import Future
from callboard.node import Node
from callboard.support.dataclass import dataclass
from callboard.support.text import describe, error_text

_log = logging.getLogger("callboard.flow")

#: Characters of an error text that is sent as the reason of an EOT.
REASON_LIMIT: Final = 500

#: Duration of a factory call that is logged as slow: all flows wait for the factory.
SLOW_FACTORY_SECONDS: Final = 0.1

_PROTOCOL: frozenset[str] = frozenset({"flow", "direction", "credit", "cid", "cid_key"})


_IN_FACTORY: Final[ContextVar[bool]] = ContextVar("callboard_flow_factory", default=False)


@frozen_message("callboard.flow.Serve")
class Serve:
    """Message to a handler: serve a flow.

    Attributes:
        bot: the encoded BOT-loc.
        broker: the flow broker; None for a broker on ZeroMQ.
        address: address of a broker on ZeroMQ.
        then_stop: whether the handler stops when the flow has ended.
    """

    bot: bytes
    broker: ActorRef | None = None
    address: str = ""
    then_stop: bool = False


@dataclass(eq=False, repr=False)
class Bot:
    """The BOT of a client as factories and handlers see it: BOT-loc.

    The direction is that of the handler: `inject` if the client sends DATs.
    """

    message: Message
    _broker: ActorRef | None = None
    _address: str = ""
    _refuse: Callable[[int, str], None] | None = None

    def __post_init__(self) -> None:
        #: The whole flow object, with `cid` and `cid_key`.
        self.object = self.message.label_object
        #: The routing id of the client.
        self.cid: int = self.object["cid"]
        #: The direction of the handler: `extract` or `inject`.
        self.direction: str = self.object["direction"]
        #: Credit that the client requests.
        self.credit: int = self.object["credit"]

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes of the client, without direction and credit."""
        return {key: value for key, value in self.object.items() if key not in _PROTOCOL}

    @property
    def payload(self) -> tuple[bytes, ...]:
        """Payload frames of the BOT."""
        return self.message.payload

    def refuse(self, reason: str) -> None:
        """Refuse the flow after the factory has returned; its client gets the reason."""
        if self._refuse is not None:
            self._refuse(self.cid, reason)

    def __repr__(self) -> str:
        return f"<Bot of {self.cid}: {self.direction}, credit {self.credit}, {self.attributes}>"

    def hand_to(self, handler: Any, *, then_stop: bool = False) -> bool:
        """Send the flow to a `FlowHandler` on any node; return True.

        Args:
            handler: ref of the handler, or a group of handlers.
            then_stop: whether the handler stops when the flow has ended.
        """
        encoded = self.message.encode()
        handler.tell(Serve(encoded, self._broker, self._address, then_stop))
        return True


#: A function of a BOT; it returns a true value if a handler will answer the BOT.
Factory = Callable[[Bot], object]


def refuse_in_factory(call: str) -> None:
    """Raise `FactoryDeadlock` if a factory runs in this context.

    Raises:
        FactoryDeadlock: the call would wait for the broker that called the factory.
    """
    if _IN_FACTORY.get():
        msg = (
            f"{call} in a factory would wait for the flow broker that called it; send the BOT "
            "to a FlowHandler with bot.hand_to(ref), and return"
        )
        raise FactoryDeadlock(msg)


def call_factory(factory: Factory, bot: Bot, now: Callable[[], float]) -> str:
    """Call a factory; return the reason of a refusal, or an empty text."""
    started = now()
    token = _IN_FACTORY.set(True)
    try:
        outcome = factory(bot)
    except FlowRefused as error:
        return error_text(error, REASON_LIMIT)
    except BaseException as error:  # noqa: BLE001  # a user's factory must not end the broker
        reason = describe(error, REASON_LIMIT)
        _log.warning("the factory raised for %r: %s", bot, reason)
        return reason
    finally:
        _IN_FACTORY.reset(token)
    duration = now() - started
    if duration > SLOW_FACTORY_SECONDS:
        _log.warning("the factory took %.1f s for %r; all flows waited for it", duration, bot)
    if inspect.iscoroutine(outcome):
        outcome.close()
        return "the factory is a coroutine function; use a plain function that returns soon"
    return "" if outcome else "no handler accepts this flow"


class FlowSpawn:
    """A factory that spawns a `FlowHandler` for each flow; it stops when the flow has ended."""

    def __init__(
        self, node: Node, handler: type[Actor], *args: Any, on: Any = None, **kwargs: Any
    ) -> None:
        """Make a factory.

        Args:
            node: node of the handlers, unless `on` is given.
            handler: a subclass of `FlowHandler`.
            args: arguments of its `__init__`.
            on: the address or id of another node that offers the class, a worker, or a pool of
                workers, as in `Node.spawn`.
            kwargs: keyword arguments of its `__init__`.
        """
        self._node = node
        self._handler = handler
        self._args, self._kwargs = args, kwargs
        self._on = on

    def __call__(self, bot: Bot) -> bool:
        """Spawn a handler, and send it the flow."""
        if self._on is None:
            ref = self._node.spawn(self._handler, *self._args, **self._kwargs)
            return bot.hand_to(ref, then_stop=True)
        spawn = self._node.context.spawn_elsewhere
        assert spawn is not None  # set by every node
        spawned = spawn(self._handler, self._args, self._kwargs, self._on)
        spawned.add_done_callback(lambda outcome: _send_flow(bot, outcome))
        return True


#: The public name of `FlowSpawn`.
Spawn = FlowSpawn


def _send_flow(bot: Bot, spawned: Future[ActorRef]) -> None:
    """Send a flow to a handler that was spawned on another node, or refuse it."""
    if (error := spawned.exception()) is None:
        bot.hand_to(spawned.result(), then_stop=True)
    else:
        bot.refuse(f"no handler could be spawned: {error_text(error, REASON_LIMIT)}")


class Pool:
    """A factory that sends flows to existing handlers: a group, or a list in turn."""

    def __init__(self, handlers: Group[Any] | Sequence[ActorRef]) -> None:
        """Make a factory.

        Args:
            handlers: a group (`node.group("recorders")`), whose routing chooses, or refs.
        """
        self._handlers = handlers
        self._next = 0

    def __call__(self, bot: Bot) -> bool:
        """Pass the flow to the next handler of the pool.

        Raises:
            FlowRefused: the pool is empty.
        """
        if isinstance(self._handlers, Group):
            try:
                return bot.hand_to(self._handlers)
            except NoMembers as error:
                raise FlowRefused(str(error)) from None
        if not self._handlers:
            msg = "the pool has no handlers"
            raise FlowRefused(msg)
        handler = self._handlers[self._next % len(self._handlers)]
        self._next += 1
        return bot.hand_to(handler)


class Route:
    """A factory that chooses another factory by the BOT; the first match wins."""

    def __init__(self) -> None:
        """Make a factory without routes, which refuses all flows."""
        self._routes: list[tuple[str | None, Callable[[Bot], bool], Factory]] = []

    def add(
        self,
        factory: Factory,
        *,
        direction: str | None = None,
        match: Mapping[str, Any] | str = "",
    ) -> "Route":
        """Add a route; return this object, so that calls can be chained.

        Args:
            factory: factory for the flows of the route.
            direction: direction of the handler: `inject` for clients that send DATs; None for
                both directions.
            match: attributes that the BOT must have, or a rule such as
                `(and (= stream "raw") (> credit 5))`.
        """
        self._routes.append((direction, _rule(match), factory))
        return self

    def __call__(self, bot: Bot) -> object:
        """Call the factory of the first route that matches.

        Raises:
            FlowRefused: no route matches.
        """
        for direction, rule, factory in self._routes:
            if direction in (None, bot.direction) and rule(bot):
                return factory(bot)
        msg = f"no rule matches a flow with {bot.attributes} and direction {bot.direction!r}"
        raise FlowRefused(msg)


def _rule(match: Mapping[str, Any] | str) -> Callable[[Bot], bool]:
    """Return the condition of a route."""
    if isinstance(match, str):
        rule = Rule(match or "true")
        return lambda bot: rule.holds(
            {**bot.attributes, "direction": bot.direction, "credit": bot.credit}
        )
    return lambda bot: match.items() <= bot.attributes.items()
