"""Many flows at once, while clients, handlers and whole nodes are killed at random."""

import pytest

from callboard import Actor, handler
from callboard.flow import Flow, FlowBroker, FlowError, FlowHandler
from callboard.flow.factories import FlowSpawn

pytestmark = pytest.mark.slow

COUNT = 200
FLOWS = []


class Worker(FlowHandler):
    """Takes what comes, or gives as many as the client wants."""

    async def serve(self, flow, bot):
        FLOWS.append(flow)
        if flow.is_giver:
            for number in range(bot.attributes["count"]):
                await flow.aput(str(number))
        else:
            got = [bytes(dat) async for dat in flow]
            await flow.aeot(count=len(got))


class Client(Actor):
    """Lives one flow and keeps what came of it."""

    def __init__(self, broker, direction, count, outcomes):
        self.plan = broker, direction, count
        self.outcomes = outcomes
        self.me.tell("go")

    @handler
    async def go(self, _: str) -> None:
        broker, direction, count = self.plan
        try:
            flow = await Flow.aconnect(
                broker, direction, credit=3, timeout=20, attributes={"count": count}
            )
            FLOWS.append(flow)
            async with flow:
                if direction == "extract":
                    for number in range(count):
                        await flow.aput(str(number))
                        await self.sleep(0.01)
                    self.outcomes[self.me] = (await flow.aeot())["count"] == count
                else:
                    got = [bytes(dat) async for dat in flow]
                    self.outcomes[self.me] = got == [str(n).encode() for n in range(count)]
        except (FlowError, ConnectionError) as error:
            self.outcomes[self.me] = error


@pytest.mark.parametrize("round_", range(3))
def test_every_survivor_ends_with_eot_or_an_error_and_the_table_is_empty(cluster, round_):
    FLOWS.clear()
    a, b, c = cluster(3, spawnable={"Worker": Worker})
    spawned = []

    def somewhere(bot):
        return FlowSpawn(b, Worker, on=c.address if bot.cid % 2 else None)(bot)

    broker = FlowBroker(b, factory=somewhere)
    there = a.ref(str(broker.ref))
    outcomes = {}
    rng = cluster.random
    for _ in range(COUNT):
        direction = rng.choice(["extract", "inject"])
        spawned.append(a.spawn(Client, there, direction, rng.randint(0, 20), outcomes))
    killed = set()
    for _ in range(30):
        cluster.advance(rng.random() * 0.02)
        victim = rng.choice(spawned)
        if victim not in outcomes:
            victim.kill()
            killed.add(victim)
        node = rng.choice([b, c])
        handlers = [
            cell for cell in node.runtime.contexts.values() if type(cell.actor) is Worker
        ]
        if handlers:
            rng.choice(handlers).ref.kill()
    if round_ == 2:
        cluster.kill(c)

    survivors = set(spawned) - killed
    cluster.run_until(lambda: survivors <= set(outcomes) and not len(broker), 120.0)

    assert survivors - set(outcomes) == set()
    assert [o for o in outcomes.values() if o is False] == []
    assert sum(o is True for o in outcomes.values()) > COUNT / 4
    assert sum(isinstance(o, FlowError) for o in outcomes.values()) > 5
    assert len(broker) == 0
    assert not broker._actor._ports
    assert all("credit" not in str(outcome) for outcome in outcomes.values())
    for flow in FLOWS:
        machine = flow._machine
        assert machine.credit + machine.waiting <= machine.total_credit
