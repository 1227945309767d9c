"""Small programs of plain asyncio that are right, each with the test of what they promise."""

import asyncio
import os
import time  # noqa: F401 - for what is planted

from callboard.simulation import Counter, NothingLost, always, linearizable, reachable

rest = asyncio.sleep  # in virtual time

LEDGER, SNAPSHOT = "/var/lib/ledger", "/var/lib/snapshot"


# --- a ledger in a file, with a snapshot ---


def sync_folder():
    folder = os.open("/var/lib", os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


class Ledger:
    """Counts payments, each name once; it answers when they are on the disk."""

    def __init__(self):
        self.paid, self.failed = {}, asyncio.Event()
        self.read(SNAPSHOT)
        self.read(LEDGER)
        self.compact()

    def read(self, path):
        if not os.path.exists(path):
            return
        with open(path, errors="replace") as file:
            for line in file.read().split("\n"):
                words = line.split(" ")
                if len(words) == 3 and words[2] == "." and "\0" not in line:
                    self.paid[words[0]] = int(words[1])

    def compact(self):
        """Put all into a snapshot, and begin the file again."""
        lines = [f"{name} {cents} .\n" for name, cents in self.paid.items()]
        with open(f"{SNAPSHOT}.new", "w") as file:
            file.write("".join(lines))
            file.flush()
            os.fsync(file.fileno())
        os.rename(f"{SNAPSHOT}.new", SNAPSHOT)
        sync_folder()
        self.file = open(LEDGER, "w")
        sync_folder()
        self.written = 0

    def pay(self, name, cents):
        if name in self.paid:
            return
        self.file.write(f"{name} {cents} .\n")
        self.file.flush()
        os.fsync(self.file.fileno())
        self.paid[name] = cents
        self.written += 1
        if self.written >= 4:
            self.compact()

    async def serve(self, reader, writer):
        try:
            while line := await reader.readline():
                words = line.decode().split()
                if words[0] == "pay":
                    self.pay(words[1], int(words[2]))
                writer.write(b"%d\n" % sum(self.paid.values()))
        except OSError:  # of its disk: what is there has to be read again
            self.failed.set()
        finally:
            writer.close()


async def ledger():
    served = Ledger()
    async with await asyncio.start_server(served.serve, "0.0.0.0", 7000):
        await served.failed.wait()
    raise RuntimeError("the disk failed")


class Payer:
    """Pays and says it again, under one name, until there is an answer."""

    def __init__(self, history, name):
        self.history, self.name = history, name

    async def main(self):
        for number in range(8):
            pay = {"name": "add", "value": 1, "key": "total", "client": self.name}
            with self.history.operation(**pay) as paying:
                paying.answer = await self.ask(f"pay {self.name}{number} 1")
            await rest(0.5)

    async def ask(self, request):
        for _ in range(60):
            try:
                async with asyncio.timeout(1.0):
                    reader, writer = await asyncio.open_connection("ledger", 7000)
                    writer.write(f"{request}\n".encode())
                    answer = await reader.readline()
                    writer.close()
                    if answer:
                        return
            except OSError:
                pass
            await rest(0.5)
        raise TimeoutError(request)


def payments(cluster):
    cluster.host("ledger", ledger, respawn=1.0)
    history = cluster.history()
    payers = [Payer(history, name) for name in ("ann", "bob")]
    for payer in payers:
        cluster.host(payer.name, payer.main, mortal=False, respawn=1.0)
    cluster.advance(20.0)
    cluster.calm()
    cluster.advance(25.0)

    async def read():
        with history.operation("read", key="total") as reading:
            reader, writer = await asyncio.open_connection("ledger", 7000)
            writer.write(b"total\n")
            reading.answer = int(await reader.readline())
            writer.close()

    cluster.host("judge", read).result(20.0)
    history.check(linearizable(Counter()))


# --- jobs and workers ---


class Jobs:
    """Gives each job to one worker after the other until one has done it."""

    def __init__(self, jobs):
        self.open = jobs

    async def serve(self, reader, writer):
        mine = None
        try:
            while line := await reader.readline():
                word = line.decode().strip()
                if word == "take":
                    mine = self.open.pop(0) if self.open else None
                    writer.write(f"{mine}\n".encode())
                elif word == mine:
                    mine = None
                    writer.write(b"done\n")
        finally:
            if mine is not None:
                self.open.append(mine)
            writer.close()


class Hand:
    """Does jobs; a job is done before it says so."""

    def __init__(self, history):
        self.history = history

    async def main(self):
        while True:
            try:
                await self.work()
            except (OSError, ValueError):
                await rest(0.3)

    async def work(self):
        async with asyncio.timeout(2.0):
            reader, writer = await asyncio.open_connection("jobs", 7001)
            try:
                writer.write(b"take\n")
                job = (await reader.readline()).decode().strip()
                if job in ("", "None"):
                    await rest(0.5)
                    return
                await self.do(job)
                writer.write(f"{job}\n".encode())
                await reader.readline()
            finally:
                writer.close()

    async def do(self, job):
        await rest(0.1)
        reachable("a job is done")
        self.history.received(job, client="hands")


def queue(cluster):
    history, waiting = cluster.history(), []
    jobs = Jobs(waiting)

    async def main():
        async with await asyncio.start_server(jobs.serve, "0.0.0.0", 7001) as server:
            await server.serve_forever()

    cluster.host("jobs", main, mortal=False)
    for name in ("left", "right"):
        cluster.host(name, Hand(history).main)
    for number, _ in cluster.steps(25):
        history.answered(history.sent(str(number), client="test"))
        waiting.append(str(number))
    cluster.calm()
    cluster.advance(30.0)
    history.check(NothingLost())


# --- a cache ---


class Origin:
    """Has one value, and tells whoever is connected of each other one."""

    def __init__(self):
        self.value, self.writers = 0, set()

    def set(self, value):
        self.value = value
        for writer in self.writers:
            self.tell(writer)

    def tell(self, writer):
        writer.write(f"{self.value}\n".encode())

    async def serve(self, reader, writer):
        self.tell(writer)
        self.writers.add(writer)
        try:
            while await reader.readline():
                writer.write(b"pong\n")
        except OSError:
            pass
        finally:
            self.writers.discard(writer)
            writer.close()

    async def main(self):
        async with await asyncio.start_server(self.serve, "0.0.0.0", 7002) as server:
            await server.serve_forever()


class Cache:
    """Has what the origin has, some time later; what it has not heard of for long is void."""

    def __init__(self, now):
        self.now, self.value, self.fresh_until, self.heard_at = now, None, 0.0, 0.0

    def clock(self):
        return asyncio.get_running_loop().time()

    async def main(self):
        self.value = None
        while True:
            try:
                await self.follow()
            except OSError:
                await rest(0.2)

    async def follow(self):
        async with asyncio.timeout(2.0):
            reader, writer = await asyncio.open_connection("origin", 7002)
        try:
            while True:
                writer.write(b"ping\n")
                async with asyncio.timeout(2.0):
                    line = await reader.readline()
                    if not line:
                        raise ConnectionError
                    self.hear(line.decode().strip())
                await rest(0.3)
        finally:
            writer.close()

    def hear(self, line):
        self.fresh_until, self.heard_at = self.clock() + 3.0, self.now()
        if line != "pong":
            self.value = int(line)

    async def read(self):
        if self.value is not None and self.clock() < self.fresh_until:
            always(self.now() - self.heard_at < 4.0, "nobody reads what is old")
            return self.value
        return None


def cache(cluster):
    origin, held = Origin(), Cache(lambda: cluster.now)
    cluster.host("origin", origin.main, mortal=False)
    host = cluster.host("cache", held.main, mortal=False)
    for number, _ in cluster.steps(25):
        if number % 2:
            origin.set(number)
        host.run(held.read)
    cluster.calm()
    cluster.advance(20.0)
    value = host.run(held.read).result(5.0)
    always(value in (None, origin.value), "in the end the cache has what the origin has")
