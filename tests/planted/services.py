"""Small correct programs, each with a test that must find its planted bug."""

import asyncio
import itertools
from collections import deque
from dataclasses import dataclass

from callboard import Actor, handler, message
from callboard.errors import CallboardError
from callboard.mqtt import ListenerSettings, Message, Router, RouterConfig
from callboard.simulation import (
    Counter,
    MqttClient,
    NothingLost,
    always,
    in_order,
    linearizable,
    reachable,
)


class Tally(Actor):
    """Adds; it asks no other actor, but is slow."""

    def __init__(self):
        self.total = 0

    @handler(concurrent=True)
    async def on_number(self, msg: int) -> int:
        await self.sleep(0.01)
        seen = self.total
        self.total = seen + msg
        return self.total


def tally(cluster):
    a, *others = cluster(3, topology="mesh")
    counter, history = str(a.spawn(Tally)), cluster.history()
    for _, chance in cluster.steps(40):
        ref = chance.choice(others).ref(counter)
        history.ask(ref, 1, key="total", operation="add", timeout=5.0)
    cluster.calm()
    cluster.advance(10.0)
    history.check(linearizable(Counter()))


# --- a bank and its tellers ---


@message("planted.Pay")
@dataclass(frozen=True)
class Pay:
    name: str
    cents: int


@message("planted.Balance")
@dataclass(frozen=True)
class Balance:
    """The paid amount."""


class Bank(Actor):
    """Stores each payment once; an answer means that it is on the disk."""

    def __init__(self, disk):
        self.file = disk.open("bank", append=True)
        disk.sync_folder("/")
        self.paid = {}
        content = self.file.pread(self.file.size(), 0)
        whole = content[: content.rfind(b"\n") + 1]
        self.file.truncate(len(whole))
        for line in whole.split(b"\n"):
            words = line.split()
            if len(words) == 3 and words[2] == b".":
                self.paid[words[0].decode()] = int(words[1])
        self.total = sum(self.paid.values())

    @handler
    def on_pay(self, msg: Pay) -> None:
        if msg.name not in self.paid:
            line = f"{msg.name} {msg.cents} .\n".encode()
            if self.file.write(line) < len(line):
                raise OSError("the disk is full")
            self.file.fsync()
            self.paid[msg.name] = msg.cents
            self.total += msg.cents

    @handler
    def on_balance(self, _: Balance) -> int:
        return self.total


class Teller(Actor):
    """Says each payment again until the bank has confirmed it, at most so often."""

    tries = 0

    def __init__(self, bank):
        self.bank = bank

    @handler(concurrent=True)
    async def on_pay(self, msg: Pay) -> None:
        for number in range(8):
            Teller.tries = max(Teller.tries, number)
            try:
                bank = await self.node.aremote_actor(self.bank, 1.0)
                return await bank.ask(msg, timeout=1.0)
            except CallboardError:
                await self.sleep(0.5 * (number + 1))
        raise TimeoutError("the bank does not answer")


def bank(cluster):
    Teller.tries = 0
    nodes = cluster(3, topology="star")
    address, tellers, banks = f"{nodes[0].address}/bank", {}, []

    def start(node):
        if node.name == "a":
            banks.append(node.spawn(Bank, cluster.disk(node)))
            node.register("bank", banks[-1])
        else:
            tellers[node.name] = node.spawn(Teller, address)

    for node in nodes:
        start(node)
    cluster.restarted = start
    history = cluster.history()
    for number, chance in cluster.steps(25):
        name = chance.choice(sorted(tellers))
        begun = history.begin("add", 1, key="balance", client=name)
        history.follow(begun, tellers[name].ask(Pay(str(number), 1), timeout=60.0))
    cluster.calm()
    cluster.advance(25.0)
    always(Teller.tries < 8, "a teller tries eight times at most")
    history.ask(banks[-1], Balance(), key="balance", operation="read", timeout=5.0)
    cluster.advance(5.0)
    history.check(linearizable(Counter()))


# --- a feed that connects again ---


class Sink(Actor):
    def __init__(self, history):
        self.history, self.seen = history, set()

    @handler
    def on_number(self, msg: int) -> None:
        if msg not in self.seen:
            self.seen.add(msg)
            self.history.received(msg, client="sink")


class Feed(Actor):
    """Sends numbers in their order, each until it has arrived."""

    def __init__(self, sink):
        self.sink, self.box, self.is_sending = sink, deque(), False

    @handler(concurrent=True)
    async def on_number(self, msg: int) -> None:
        self.box.append(msg)
        if self.is_sending:
            return
        self.is_sending = True
        while self.box:
            number = self.box.popleft()
            try:
                sink = await self.node.aremote_actor(self.sink, 1.0)
                await sink.ask(number, timeout=1.0)
            except CallboardError:
                self.box.appendleft(number)
                await self.sleep(0.2)
        self.is_sending = False


def feed(cluster):
    a, b = cluster(2)
    history = cluster.history()
    feeds = {}

    def start(node):
        if node.name == "a":
            node.register("sink", node.spawn(Sink, history))
        else:
            feeds[node.name] = node.spawn(Feed, f"{a.address}/sink")

    start(a)
    start(b)
    cluster.restarted = start
    for number, _ in cluster.steps(40):
        history.unknown(history.sent(number, client="feed"))
        feeds["b"].tell(number)
    cluster.calm()
    cluster.advance(10.0)
    history.check(in_order)


# --- a lease, and what it guards ---


@message("planted.Guarded")
@dataclass(frozen=True)
class Guarded:
    token: int
    who: str


class Locker(Actor):
    """Lends a lock for three seconds; each lease has a higher token."""

    token, is_lent = 0, False

    @handler(concurrent=True)
    async def on_text(self, msg: str) -> int:
        if self.is_lent:
            return 0
        Locker.token += 1
        self.is_lent = True
        self.me.tell(Locker.token)
        return Locker.token

    @handler(concurrent=True)
    async def on_number(self, msg: int) -> None:
        await self.sleep(3.0)
        self.is_lent = False


class Guard(Actor):
    """Accepts the write with the highest token."""

    token = 0

    def __init__(self, taken):
        self.taken = taken

    @handler
    def on_guarded(self, msg: Guarded) -> bool:
        if msg.token < self.token:
            return False
        self.token = msg.token
        self.taken.append(msg.token)
        return True


class Worker(Actor):
    """Works while its timer says that it has the lease."""

    def __init__(self, locker, guard):
        self.locker, self.guard = locker, guard

    @handler(concurrent=True)
    async def on_text(self, msg: str) -> None:
        while True:
            await self.sleep(0.2)
            try:
                token = await self.locker.ask(msg, timeout=1.0)
                for _ in range(8 if token else 0):
                    await self.sleep(0.2)
                    self.guard.tell(Guarded(token, msg))
            except CallboardError:
                await self.sleep(0.5)


def lease(cluster):
    Locker.token, taken = 0, []
    a, b, c = cluster(3, topology="mesh")
    locker, guard = a.spawn(Locker), a.spawn(Guard, taken)
    for node in (b, c):
        node.spawn(Worker, node.ref(str(locker)), node.ref(str(guard))).tell(node.name)
    cluster.advance(25.0)
    always(taken == sorted(taken), "nobody works with a lease that is over")


# --- masters ---


class Voter(Actor):
    """Has one favourite for three seconds; it waits as long before its first one."""

    def __init__(self):
        self.favourite, self.until = "", None

    @handler
    def on_text(self, msg: str) -> bool:
        now = asyncio.get_running_loop().time()
        if self.until is None:
            self.until = now + 3.0
        if self.favourite != msg and now < self.until:
            return False
        self.favourite, self.until = msg, now + 3.0
        return True


_REIGNS = itertools.count(0, 1_000_000)  # of no candidate the same


class Candidate(Actor):
    """Is master as long as most voters are for it."""

    def __init__(self, voters, acts):
        self.voters, self.acts, self.reign = voters, acts, next(_REIGNS)

    async def ask_voter(self, address):
        try:
            voter = await self.node.aremote_actor(address, 0.3)
            return await voter.ask(self.node.name, timeout=0.3)
        except CallboardError:
            return None

    @handler(concurrent=True)
    async def on_text(self, _: str) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            until = clock() + 1.5
            answers = [await self.ask_voter(voter) for voter in self.voters]
            answers = [each for each in answers if each is not None]
            if answers.count(True) > len(self.voters) / 2 and clock() < until:
                reachable("there is a master")
                self.acts.append((self.node.name, self.reign))
            else:
                self.reign += 1
            await self.sleep(0.3)


def masters(cluster):
    nodes = cluster(3, topology="mesh")
    acts, voters = [], [f"{node.address}/voter" for node in nodes]

    def start(node):
        node.register("voter", node.spawn(Voter))
        node.spawn(Candidate, voters, acts).tell("begin")

    for node in nodes:
        start(node)
    cluster.restarted = start
    cluster.advance(25.0)
    reigns = [reign for reign, _ in itertools.groupby(acts)]
    always(len(reigns) == len(set(reigns)), "no master acts behind a later one")


# --- monitors ---


class Quiet(Actor):
    @handler
    def on_text(self, msg: str) -> None:
        if msg == "stop":
            self.stop()


def monitors(cluster):
    a, *others = cluster(3, topology="mesh")
    watched = [str(a.spawn(Quiet)) for _ in range(6)]
    downs = [(node, node.monitor(node.ref(ref))) for node in others for ref in watched]
    stopped = set()
    for _, chance in cluster.steps(10):
        ref = chance.choice(watched)
        if cluster.is_running(a):
            a.ref(ref).tell("stop")
            stopped.add(ref)
    cluster.calm()
    cluster.advance(30.0)
    for place, (node, down) in enumerate(downs):
        if cluster.is_running(node) and (watched[place % 6] in stopped):
            always(down.done(), "every monitor hears of an end")


# --- wills ---


def wills(cluster):
    """A router whose journal cannot be synced ends: another process continues."""
    hub, left, right = cluster(3, topology="none")
    history, asked, ends = cluster.history(), [], []

    def start(node):
        if node.name == hub.name:
            ports = (ListenerSettings("127.0.0.1:1883"),)
            config = RouterConfig(ports, directory="/mqtt", sys_interval=0)
            ends.append(node.monitor(Router(config, node=node).start().ref))
        elif node.name == right.name:
            asked.append(MqttClient(node, "reader", hub, history).subscribe("wills/#", qos=1))
        elif is_read():
            MqttClient(node, "ill", hub, history, will=a_will)

    def is_read():
        """Return whether the reader has subscribed: earlier wills have no receiver."""
        return any(each.done() for each in asked)

    def a_will(number):
        return Message(f"wills/{len(history)}", b"%d" % number, qos=1)

    start(hub)
    cluster.restarted = start
    start(right)
    cluster.run_until(is_read, 60.0)
    start(left)
    cluster.advance(20.0)
    cluster.calm()
    if ends[-1].done():
        hub = cluster.machines()[0]
        cluster.kill(hub)
        cluster.restart(hub)
    cluster.advance(20.0)
    history.check(NothingLost())


# --- orders over a router ---


def orders(cluster):
    """Each order comes once, whatever ends; a router whose journal fails is begun again."""
    hub, till, desk = cluster(3, topology="none")
    history, ends, clients = cluster.history(), [], {}

    def start(node):
        if node.name == hub.name:
            ports = (ListenerSettings("127.0.0.1:1883"),)
            config = RouterConfig(ports, directory="/mqtt", sys_interval=0)
            ends.append(node.monitor(Router(config, node=node).start().ref))

    start(hub)
    cluster.restarted = start
    for node in (till, desk):
        clients[node.name] = MqttClient(node, node.name, hub, history)
    asked = clients[desk.name].subscribe("orders/#", qos=2)
    cluster.run_until(lambda: asked.done(), 30.0)
    for number, chance in cluster.steps(30):
        if cluster.is_running(till):
            clients[till.name].publish("orders/eu", b"%d" % number, qos=chance.choice((1, 2)))
        if ends[-1].done() and cluster.is_running(cluster.machines()[0]):
            cluster.kill(cluster.machines()[0])
    cluster.calm()
    if ends[-1].done():
        cluster.kill(cluster.machines()[0])
        cluster.restart(cluster.machines()[0])
    cluster.advance(30.0)
    if asked.done() and cluster.is_running(till) and cluster.is_running(desk):
        history.check(NothingLost())
