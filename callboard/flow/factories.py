"""Factories, and the BOT of a client that they find a handler for.

Ready ones spawn a handler for each flow, use a pool, or choose by rule. A flow broker serves
one message at a time, and calls its factory in that time. A factory that opened or answered a
flow itself would wait for messages that the broker cannot pass on before the factory returns.
Opening a flow inside a factory raises `FactoryDeadlock` instead.
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

#: Characters of an error's text that the other side of a flow is told.
REASON_LIMIT: Final = 500

#: Seconds after which a factory is named in the log: all flows wait for it.
SLOW_FACTORY: Final = 0.1

_PROTOCOL: frozenset[str] = frozenset({"flow", "direction", "credit", "cid", "cid_key"})


_IN_FACTORY: Final[ContextVar[bool]] = ContextVar("callboard_flow_factory", default=False)


@frozen_message("callboard.flow.Serve")
class Serve:
    """To a handler: take this flow.

    Attributes:
        bot: the encoded BOT-loc.
        broker: the flow broker, or None when it is reached by its address.
        address: where a broker on ZeroMQ is reached.
        then_stop: end when the flow has ended.
    """

    bot: bytes
    broker: ActorRef[Any] | None = None
    address: str = ""
    then_stop: bool = False


@dataclass(eq=False, repr=False)
class Bot:
    """What a client's BOT says, as a factory or handler gets it: BOT-loc.

    Made by the flow broker, and by the handler that got it. The direction is the handler's:
    `inject` when the client gives.
    """

    message: Message
    _broker: ActorRef[Any] | None = None
    _address: str = ""
    _refuse: Callable[[int, str], None] | None = None

    def __post_init__(self) -> None:
        #: The whole flow object, with `cid` and `cid_key`.
        self.object = self.message.label_object
        #: The routing id of the client.
        self.cid: int = self.object["cid"]
        #: The part of the handler: `extract` or `inject`.
        self.direction: str = self.object["direction"]
        #: Credit that the client asks for.
        self.credit: int = self.object["credit"]

    @property
    def attributes(self) -> dict[str, Any]:
        """Return the attributes of the client beside direction and credit."""
        return {key: held for key, held in self.object.items() if key not in _PROTOCOL}

    @property
    def payload(self) -> tuple[bytes, ...]:
        """Frames that came with the BOT."""
        return self.message.payload

    def refuse(self, reason: str) -> None:
        """Tell the client, after the factory has returned, that the flow is refused."""
        if self._refuse is not None:
            self._refuse(self.cid, reason)

    def __repr__(self) -> str:
        return f"<Bot of {self.cid}: {self.direction}, credit {self.credit}, {self.attributes}>"

    def hand_to(self, handler: Any, *, then_stop: bool = False) -> bool:
        """Give the flow to a `FlowHandler`, here or on another node; returns True.

        Args:
            handler: its ref, or a group of handlers.
            then_stop: let it end when the flow has ended.
        """
        encoded = self.message.encode()
        handler.tell(Serve(encoded, self._broker, self._address, then_stop))
        return True


#: Takes a BOT and returns something true when a handler will answer it.
Factory = Callable[[Bot], object]


def refuse_in_factory(call: str) -> None:
    """Raise when a factory is under way in this context.

    Raises:
        FactoryDeadlock: the call would wait for the broker that called the factory.
    """
    if _IN_FACTORY.get():
        msg = (
            f"{call} in a factory would wait for the flow broker that called it; give the BOT "
            "to a FlowHandler with bot.hand_to(ref) and return"
        )
        raise FactoryDeadlock(msg)


def call_factory(factory: Factory, bot: Bot, now: Callable[[], float]) -> str:
    """Call a factory; returns why the flow is refused, or nothing when it is not."""
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
    took = now() - started
    if took > SLOW_FACTORY:
        _log.warning("the factory took %.1f s for %r; every flow waited for it", took, bot)
    if inspect.iscoroutine(outcome):
        outcome.close()
        return "the factory is a coroutine function; it has to be a plain one that returns soon"
    return "" if outcome else "no handler takes this flow"


class Spawn:
    """Spawns a `FlowHandler` for each flow, which ends with it."""

    def __init__(
        self, node: Node, handler: type[Actor], *args: Any, on: Any = None, **kwargs: Any
    ) -> None:
        """Remember what to spawn.

        Args:
            node: where, unless `on` says otherwise.
            handler: a subclass of `FlowHandler`.
            args: for its `__init__`.
            on: the address or id of another node that offers the class, a worker, or a pool of
                workers: as in `Node.spawn`.
            kwargs: for its `__init__`.
        """
        self._node = node
        self._handler = handler
        self._args, self._kwargs = args, kwargs
        self._on = on

    def __call__(self, bot: Bot) -> bool:
        """Spawn a handler and give it the flow."""
        if self._on is None:
            ref = self._node.spawn(self._handler, *self._args, **self._kwargs)
            return bot.hand_to(ref, then_stop=True)
        spawn = self._node.context.spawn_elsewhere
        assert spawn is not None  # every node has it
        spawned = spawn(self._handler, self._args, self._kwargs, self._on)
        spawned.add_done_callback(lambda outcome: _give(bot, outcome))
        return True


def _give(bot: Bot, spawned: Future[ActorRef[Any]]) -> None:
    """Give a flow to a handler of another node; without one its client is told so."""
    if (error := spawned.exception()) is None:
        bot.hand_to(spawned.result(), then_stop=True)
    else:
        bot.refuse(f"no handler could be spawned: {error_text(error, REASON_LIMIT)}")


class Pool:
    """Gives flows to handlers that exist: those of a group, or these, one after the other."""

    def __init__(self, handlers: Group[Any] | Sequence[ActorRef[Any]]) -> None:
        """Take a group (`node.group("recorders")`), whose routing chooses, or refs."""
        self._handlers = handlers
        self._next = 0

    def __call__(self, bot: Bot) -> bool:
        """Give the flow to one of them.

        Raises:
            FlowRefused: there are none.
        """
        if isinstance(self._handlers, Group):
            try:
                return bot.hand_to(self._handlers)
            except NoMembers as error:
                raise FlowRefused(str(error)) from None
        if not self._handlers:
            msg = "the pool has no handlers"
            raise FlowRefused(msg)
        chosen = self._handlers[self._next % len(self._handlers)]
        self._next += 1
        return bot.hand_to(chosen)


class Route:
    """Chooses a factory by what the BOT says; the first match wins."""

    def __init__(self) -> None:
        """Begin without any route: everything is refused."""
        self._routes: list[tuple[str | None, Callable[[Bot], bool], Factory]] = []

    def add(
        self,
        factory: Factory,
        *,
        direction: str | None = None,
        match: Mapping[str, Any] | str = "",
    ) -> "Route":
        """Add a route; returns this object, so that calls can be chained.

        Args:
            factory: what takes the flow.
            direction: of the handler: `inject` for clients that give; None for both.
            match: attributes that the BOT must have, or a rule, such as
                `(and (= stream "raw") (> credit 5))`.
        """
        self._routes.append((direction, _rule(match), factory))
        return self

    def __call__(self, bot: Bot) -> object:
        """Use the first route that matches.

        Raises:
            FlowRefused: none does.
        """
        for direction, rule, factory in self._routes:
            if direction in (None, bot.direction) and rule(bot):
                return factory(bot)
        msg = f"no rule takes a flow with {bot.attributes} and direction {bot.direction!r}"
        raise FlowRefused(msg)


def _rule(match: Mapping[str, Any] | str) -> Callable[[Bot], bool]:
    """Return the condition of a route."""
    if isinstance(match, str):
        rule = Rule(match or "true")
        return lambda bot: rule.holds(
            {**bot.attributes, "direction": bot.direction, "credit": bot.credit}
        )
    return lambda bot: match.items() <= bot.attributes.items()
