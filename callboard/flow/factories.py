"""Ready factories: spawn a handler for each flow, use a pool, or choose by rule."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from actors.actor import Actor
from actors.future import Future
from actors.reference import ActorRef
from callboard.flow.broker import Factory
from callboard.flow.errors import FlowRefused
from callboard.flow.handler import Bot
from callboard.flow.rules import Rule
from proxies.errors import NoMembers
from proxies.group import Group
from proxies.node import Node

__all__ = ["Pool", "Route", "Spawn"]


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
        spawn = self._node.runtime.spawn_elsewhere
        assert spawn is not None  # every node has it
        spawned = spawn(self._handler, self._args, self._kwargs, self._on)
        spawned.add_done_callback(lambda outcome: _give(bot, outcome))
        return True


def _give(bot: Bot, spawned: Future[ActorRef[Any]]) -> None:
    """Give a flow to a handler of another node; without one its client is told so."""
    error = spawned.exception()
    if error is None:
        bot.hand_to(spawned.result(), then_stop=True)
    else:
        bot.refuse(f"no handler could be spawned: {error}")


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
    if isinstance(match, str):
        return _always if not match else _by_text(Rule(match))
    return lambda bot: all(
        name in bot.attributes and bot.attributes[name] == value
        for name, value in match.items()
    )


def _always(_: Bot) -> bool:
    return True


def _by_text(rule: Rule) -> Callable[[Bot], bool]:
    return lambda bot: rule.holds({**bot.attributes, **_of_protocol(bot)})


def _of_protocol(bot: Bot) -> dict[str, Any]:
    return {"direction": bot.direction, "credit": bot.credit}
