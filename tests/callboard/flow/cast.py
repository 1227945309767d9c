"""Handlers that the tests of flows share."""

from typing import ClassVar

from callboard.flow import Bot, Flow, FlowHandler


class Collector(FlowHandler):
    """Receives everything, and reports it at the end."""

    flow_timeout = 20

    async def serve(self, flow: Flow, bot: Bot) -> None:
        got = [bytes(dat).decode() async for dat in flow]
        await flow.aeot(got=got, who=bot.attributes.get("who"))


class Numbers(FlowHandler):
    """Sends the number of items that the client requests."""

    flow_timeout = 20

    async def serve(self, flow: Flow, bot: Bot) -> None:
        for number in range(bot.attributes.get("count", 3)):
            await flow.aput(str(number), number=number)


class Crashing(FlowHandler):
    """Takes one DAT, then fails."""

    flow_timeout = 20

    async def serve(self, flow: Flow, bot: Bot) -> None:
        await flow.aget()
        msg = "out of paper"
        raise ValueError(msg)


class Counting(FlowHandler):
    """Knows how many flows it serves at once."""

    alive: ClassVar[int] = 0
    most: ClassVar[int] = 0
    flow_timeout = 20

    async def serve(self, flow: Flow, bot: Bot) -> None:
        Counting.alive += 1
        Counting.most = max(Counting.most, Counting.alive)
        async for _ in flow:
            pass
        Counting.alive -= 1
