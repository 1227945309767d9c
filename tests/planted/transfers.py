"""Transfers between two accounts on two machines: a journal says which are not over."""

from contextlib import suppress
from dataclasses import dataclass

from callboard import Actor, handler, message
from callboard.errors import CallboardError
from callboard.simulation import always, reachable


@message("planted.Move")
@dataclass(frozen=True)
class Move:
    """Add to an account, once for each name."""

    name: str
    cents: int


class Pages:
    """Lines in a file; written lines are on the disk."""

    def __init__(self, disk, name):
        self.lines = []
        with suppress(FileNotFoundError):
            file = disk.open(name)
            words = file.pread(file.size(), 0).decode(errors="replace").split("\n")
            whole = [line.split() for line in words if line.endswith(" .") and "\0" not in line]
            self.lines = [line[:2] for line in whole if len(line) == 3]
        self.file = disk.open(f"{name}.new", append=True)
        self.file.truncate(0)
        self.is_broken = False
        for line in self.lines:  # the lines that were read may not be durable
            self.append(line)
        self.file.fsync()
        disk.rename(f"{name}.new", name)
        disk.sync_folder("/")

    def append(self, words):
        line = f"{' '.join(words)} .\n".encode()
        if self.file.write(line) < len(line):
            raise OSError("the disk is full")

    def write(self, *words):
        """Write a line; after an error the content is unknown until it is read again."""
        if self.is_broken:
            raise OSError("the file has to be read again")
        self.is_broken = True
        self.append(words)
        self.file.fsync()
        self.is_broken = False


class Account(Actor):
    """Has money; it applies a named transfer only once."""

    def __init__(self, disk, name, accounts):
        accounts[name] = self
        self.pages = Pages(disk, "account")
        self.names = {name for name, _ in self.pages.lines}
        self.total = sum(int(cents) for _, cents in self.pages.lines)

    @handler
    def on_move(self, msg: Move) -> None:
        if msg.name not in self.names:
            self.pages.write(msg.name, str(msg.cents))
            self.names.add(msg.name)
            self.total += msg.cents


class Clerk(Actor):
    """Takes from one account and gives to the other; what it began it brings to an end."""

    def __init__(self, disk, left, right):
        self.accounts = (left, right)
        self.pages = Pages(disk, "clerk")
        self.open, self.last = [], 0
        for what, number in self.pages.lines:
            self.last = max(self.last, int(number))
            if what == "begin":
                self.open.append(int(number))
            elif int(number) in self.open:
                self.open.remove(int(number))
        self.resume()

    def resume(self):
        for number in self.open:
            self.me.tell(number)

    @handler
    def on_text(self, msg: str) -> None:
        """Start a transfer; an answer means that it will be done."""
        self.last += 1
        self.pages.write("begin", str(self.last))
        self.me.tell(self.last)

    @handler(concurrent=True)
    async def on_number(self, msg: int) -> None:
        await self.move(self.accounts[0], f"{msg}", -1)
        reachable("half of a transfer is done")
        await self.move(self.accounts[1], f"{msg}", 1)
        self.pages.write("end", str(msg))

    async def move(self, account, name, cents):
        while True:
            try:
                found = await self.node.aremote_actor(account, 1.0)
                return await found.ask(Move(name, cents), timeout=1.0)
            except CallboardError:
                await self.sleep(0.5)


def scenario(cluster):
    nodes = cluster(3, topology="star")
    left, right = (f"{node.address}/account" for node in nodes[1:])
    accounts, clerks, sure = {}, [], []

    def start(node):
        if node.name == "a":
            clerks.append(node.spawn(Clerk, cluster.disk(node), left, right))
        else:
            account = node.spawn(Account, cluster.disk(node), node.name, accounts)
            node.register("account", account)

    def done(future):
        if not future.cancelled() and future.exception() is None:
            sure.append(1)

    for node in nodes:
        start(node)
    cluster.restarted = start
    for _, _ in cluster.steps(20):
        clerks[-1].ask("one cent", timeout=5.0).on_done(done)
    cluster.calm()
    for node in cluster.machines():  # they read what they could not write
        cluster.kill(node)
        cluster.restart(node)
    cluster.advance(30.0)
    totals = [each.total for each in accounts.values()]
    always(sum(totals) == 0, "no money is made or lost")
    always(max(totals) >= len(sure), "what was answered is done")
