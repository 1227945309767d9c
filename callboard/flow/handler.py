"""Handlers of flows: actors that talk with one client each, or with many at once."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from actors.actor import Actor
from actors.dispatch import handler
from actors.errors import AskTimeout
from actors.reference import ActorRef
from callboard.flow.errors import FlowAborted, FlowError, FlowRefused, FlowTimeout
from callboard.flow.flow import Flow
from callboard.flow.link import ActorLink, Link, Taker
from callboard.flow.machine import FlowMachine
from callboard.flow.message import Message
from callboard.flow.opening import open_link
from callboard.flow.side import DEFAULT_TIMEOUT, text_of
from proxies.messages import message

__all__ = ["Bot", "FlowHandler", "Serve"]

_PROTOCOL: frozenset[str] = frozenset({"flow", "direction", "credit", "cid", "cid_key"})


@message("callboard.flow.Serve")
@dataclass(frozen=True, slots=True)
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


class Bot:
    """What a client's BOT says, as a factory or handler gets it: BOT-loc.

    The direction is the handler's: `inject` when the client gives.
    """

    __slots__ = ("_address", "_broker", "_refuse", "message", "object")

    def __init__(
        self,
        message: Message,
        broker: ActorRef[Any] | None = None,
        address: str = "",
        refuse: Callable[[int, str], None] | None = None,
    ) -> None:
        """Made by the flow broker, and by the handler that got it."""
        self._refuse = refuse
        self.message = message
        #: The whole flow object, with `cid` and `cid_key`.
        self.object = message.label_object
        self._broker = broker
        self._address = address

    @property
    def cid(self) -> int:
        """The routing id of the client."""
        cid: int = self.object["cid"]
        return cid

    @property
    def direction(self) -> str:
        """What the handler will do: `extract` or `inject`."""
        direction: str = self.object["direction"]
        return direction

    @property
    def credit(self) -> int:
        """Credit that the client asks for."""
        credit: int = self.object["credit"]
        return credit

    @property
    def attributes(self) -> dict[str, Any]:
        """What the client said beside direction and credit."""
        return {key: held for key, held in self.object.items() if key not in _PROTOCOL}

    @property
    def payload(self) -> tuple[bytes, ...]:
        """Frames that came with the BOT."""
        return self.message.payload

    def refuse(self, reason: str) -> None:
        """Let the client know, after the factory has returned, that nobody takes the flow."""
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


class FlowHandler(Actor):
    """An actor that serves flows: write `serve`.

    It is an ordinary actor: it can publish, be monitored, be supervised, and run on another
    node. An exception in `serve` ends it, all its flows with it (their clients get EOT with a
    reason), and its supervisor decides what follows; errors of the flow itself end that flow
    only.
    """

    #: The most credit that it grants; None grants what the client asks for.
    credit: ClassVar[int | None] = None
    #: Seconds that waits of its flows may take; None for no limit.
    flow_timeout: ClassVar[float | None] = DEFAULT_TIMEOUT

    async def serve(self, flow: Flow, bot: Bot) -> None:
        """Give or take the DATs of one flow; EOT is sent, or echoed, when it returns."""
        msg = (
            f"{type(self).__name__} serves no flows: define async def serve(self, flow, bot), "
            "which gives with flow.aput(…) or takes with async for"
        )
        raise NotImplementedError(msg)

    def opening(self, bot: Bot) -> Mapping[str, Any]:
        """Return what the client is told in the BOT: by default its own attributes.

        Raises:
            FlowRefused: the client gets EOT with this text as the reason.
        """
        return bot.attributes

    @handler(concurrent=True)
    async def take_flow(self, order: Serve) -> None:
        """Serve one flow."""
        bot = Bot(Message.decode(order.bot), order.broker, order.address)
        try:
            flow = await self._open(order, bot)
            if flow is not None:
                await self._serve(flow, bot)
        finally:
            if order.then_stop:
                self.stop_self()

    async def _open(self, order: Serve, bot: Bot) -> Flow | None:
        """Answer the BOT; None when the flow did not come about."""
        own = {"cid": bot.cid, "cid_key": bot.object.get("cid_key")}
        try:
            about, reason = self.opening(bot), ""
        except FlowRefused as error:
            about, reason = {}, str(error)
        credit = bot.credit if self.credit is None else min(bot.credit, self.credit)
        machine = FlowMachine(bot.direction, credit, {**about, **own})
        flow = Flow(machine, self.flow_timeout)
        flow.use(self._link(order, flow))
        if reason:
            flow.refuse(reason, own)
            flow.close()
            return None
        try:
            await flow.aopen()
        except (FlowRefused, FlowTimeout, FlowAborted, AskTimeout):
            return None  # the client gave up, or the broker did
        return flow

    def _link(self, order: Serve, taker: Taker) -> Link:
        if order.broker is not None:
            return ActorLink(self.node, order.broker, taker)
        return open_link(
            order.address, taker, node=self.node, secret=None, tls=None, timeout=None
        )

    async def _serve(self, flow: Flow, bot: Bot) -> None:
        try:
            async with flow:
                await self.serve(flow, bot)
        except FlowError as error:
            self.flow_failed(bot, error)

    def flow_failed(self, bot: Bot, error: FlowError) -> None:
        """Take note of a flow that did not end well; by default nothing is done."""


def reason_of(error: BaseException) -> str:
    """Return what a client is told of an error of a factory."""
    return str(error) if isinstance(error, FlowRefused) else text_of(error)
