"""Handlers of flows: actors that talk with one client each, or with many at once."""

from collections.abc import Mapping
from typing import Any, ClassVar

from callboard.flow.errors import FlowAborted, FlowError, FlowRefused, FlowTimeout
from callboard.flow.factories import REASON_LIMIT, Bot, Serve
from callboard.flow.flow import DEFAULT_TIMEOUT, Flow, FlowAddress
from callboard.flow.protocol.machine import FlowMachine
from callboard.flow.protocol.message import Message
from callboard.kernel.actors import Actor, handler
from callboard.kernel.errors import AskTimeout
from callboard.support.text import said


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
        """Answer the BOT; None when the flow did not come about."""
        own = {"cid": bot.cid, "cid_key": bot.object.get("cid_key")}
        try:
            about, reason = self.opening(bot), ""
        except FlowRefused as error:
            about, reason = {}, said(error, REASON_LIMIT)
        credit = bot.credit if self.credit is None else min(bot.credit, self.credit)
        flow = Flow(FlowMachine(bot.direction, credit, {**about, **own}), self.flow_timeout)
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
        """Serve an open flow; its own errors end only itself."""
        try:
            async with flow:
                await self.serve(flow, bot)
        except FlowError as error:
            self.flow_failed(bot, error)

    def flow_failed(self, bot: Bot, error: FlowError) -> None:
        """Take note of a flow that did not end well; by default nothing is done."""
