"""Handlers of flows: actors that serve one client each, or many at once."""

from collections.abc import Mapping
from typing import Any, ClassVar

from callboard.flow.errors import FlowAborted, FlowError, FlowRefused, FlowTimeout
from callboard.flow.factories import REASON_LIMIT, Bot, Serve
from callboard.flow.flow import DEFAULT_TIMEOUT, Flow, FlowAddress
from callboard.flow.protocol.machine import FlowMachine
from callboard.flow.protocol.message import Message
from callboard.kernel.actors import Actor, handler
from callboard.kernel.errors import AskTimeout
from callboard.support.text import error_text


class FlowHandler(Actor):
    """An actor that serves flows; subclasses define `serve`.

    It is an ordinary actor: it can publish, be monitored and supervised, and run on another
    node. An exception in `serve` ends the actor and all its flows, whose clients get EOT with a
    reason; its supervisor decides about a restart. A `FlowError` ends only the flow concerned.
    """

    #: Limit of the credit of a flow; None grants what the client requests.
    credit: ClassVar[int | None] = None
    #: Seconds that its flows wait for the client; None for no limit.
    flow_timeout: ClassVar[float | None] = DEFAULT_TIMEOUT

    async def serve(self, flow: Flow, bot: Bot) -> None:
        """Send or receive the DATs of one flow; EOT is sent or echoed when this returns."""
        msg = (
            f"{type(self).__name__} cannot serve flows: define async def serve(self, flow,"
            " bot), which sends with flow.aput(…) or receives with async for"
        )
        raise NotImplementedError(msg)

    def opening(self, bot: Bot) -> Mapping[str, Any]:
        """Return the attributes of the answer to a BOT; by default the BOT's own.

        Raises:
            FlowRefused: refuse the flow; the client gets EOT with this text as the reason.
        """
        return bot.attributes

    @handler(concurrent=True, cancellable=False)
    async def take_flow(self, order: Serve) -> None:
        """Serve one flow."""
        bot = Bot(Message.decode(order.bot), order.broker, order.address)
        try:
            if (flow := await self._open(order, bot)) is not None:
                await self._serve(flow, bot)
        finally:
            if order.then_stop:
                self.stop_self()

    async def _open(self, order: Serve, bot: Bot) -> Flow | None:
        """Answer the BOT; return None if the flow was refused or the client gave up."""
        own = {"cid": bot.cid, "cid_key": bot.object.get("cid_key")}
        try:
            attributes, reason = self.opening(bot), ""
        except FlowRefused as error:
            attributes, reason = {}, error_text(error, REASON_LIMIT)
        credit = bot.credit if self.credit is None else min(bot.credit, self.credit)
        flow = Flow(
            FlowMachine(bot.direction, credit, {**attributes, **own}), self.flow_timeout
        )
        address = order.address if order.broker is None else order.broker
        flow.use(FlowAddress(address, self.node).link(flow))
        if reason:
            flow.refuse(reason, own)
            flow.close()
            return None
        try:
            await flow.aopen()
        except (FlowRefused, FlowTimeout, FlowAborted, AskTimeout):
            return None  # the client gave up, or the broker did
        return flow

    async def _serve(self, flow: Flow, bot: Bot) -> None:
        """Serve an open flow; a `FlowError` ends only this flow."""
        try:
            async with flow:
                await self.serve(flow, bot)
        except FlowError as error:
            self.flow_failed(bot, error)

    def flow_failed(self, bot: Bot, error: FlowError) -> None:
        """Called with the error of a failed flow; does nothing by default."""
