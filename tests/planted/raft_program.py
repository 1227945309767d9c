"""A Raft of plain asyncio programs: lines of JSON over TCP, and a file that is synced.

Three members keep one register; clients on machines of their own ask whoever leads.
"""

import asyncio
import json
import os
import random

from callboard.simulation import Register, linearizable, reachable

NAMES = ("n0", "n1", "n2")
PORT = 9000
HEARTBEAT = 0.05
PATH = "/var/lib/raft"


class Peer:
    """One member; what it has promised is in its file."""

    def __init__(self, name):
        self.name, self.others = name, [each for each in NAMES if each != name]
        self.term, self.voted, self.log = 0, None, []
        self.role, self.leader, self.commit = "follower", None, 0
        self.applied = asyncio.Condition()
        self.next, self.match, self.tasks = {}, {}, set()
        self.random = random.Random()  # of the host's chance, so of the seed
        self.load()
        self.wait_again()

    # --- the file ---

    def load(self):
        """Read what is whole, and write it anew."""
        lines = []
        if os.path.exists(PATH):
            with open(PATH, errors="replace") as file:
                lines = file.read().split("\n")
        good = []
        for line in lines:
            try:
                kind, *rest = json.loads(line)
            except (ValueError, TypeError):  # torn
                continue
            good.append(line)
            if kind == "vote":
                self.term, self.voted = rest
            else:
                self.log[rest[0] :] = [rest[1:]]
        self.file = open(f"{PATH}.new", "w")
        self.file.write("".join(f"{line}\n" for line in good))
        self.sync()
        os.rename(f"{PATH}.new", PATH)
        folder = os.open("/var/lib", os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)

    def sync(self):
        self.file.flush()
        os.fsync(self.file.fileno())

    def save_vote(self):
        self.file.write(f"\n{json.dumps(['vote', self.term, self.voted])}\n")
        self.sync()

    def save_log(self, begin):
        for place, entry in enumerate(self.log[begin:], begin):
            self.file.write(f"\n{json.dumps(['entry', place, *entry])}\n")
        self.sync()

    # --- elections ---

    def wait_again(self):
        self.until = asyncio.get_running_loop().time() + self.random.uniform(0.3, 0.6)

    def is_newer(self, term):
        if term <= self.term:
            return False
        self.term, self.voted, self.role = term, None, "follower"
        self.save_vote()
        return True

    def last(self):
        return [self.log[-1][0] if self.log else 0, len(self.log)]

    async def campaign(self):
        self.term += 1
        self.voted, self.role = self.name, "candidate"
        self.save_vote()
        self.wait_again()
        term, votes = self.term, 1
        asked = {"do": "vote", "term": term, "who": self.name, "last": self.last()}
        for answered in asyncio.as_completed([self.call(each, asked) for each in self.others]):
            try:
                answer = await answered
            except (OSError, ValueError):
                continue
            if self.is_newer(answer["term"]):
                return
            votes += answer["ok"]
            if votes == 2 and self.role == "candidate" and self.term == term:
                self.role, self.leader = "leader", self.name
                self.next = dict.fromkeys(self.others, len(self.log))
                self.match = dict.fromkeys(self.others, 0)
                reachable("a program is elected")

    async def on_vote(self, asked):
        self.is_newer(asked["term"])
        is_free = self.voted in (None, asked["who"])
        granted = asked["term"] == self.term and is_free and asked["last"] >= self.last()
        if granted:
            self.voted = asked["who"]
            self.save_vote()
            self.wait_again()
        return {"term": self.term, "ok": granted}

    # --- the log ---

    async def push(self, peer):
        if self.role != "leader":
            return
        term, begin = self.term, self.next[peer]
        entries = self.log[begin:]
        before = self.log[begin - 1][0] if begin else 0
        asked = {"do": "append", "term": term, "who": self.name, "begin": begin}
        asked |= {"before": before, "entries": entries, "commit": self.commit}
        answer = await self.call(peer, asked)
        if self.is_newer(answer["term"]) or self.role != "leader" or self.term != term:
            return
        if not answer["ok"]:
            self.next[peer] = max(0, min(self.next[peer], begin) - 1)
            return
        self.match[peer] = max(self.match[peer], begin + len(entries))
        self.next[peer] = max(self.next[peer], self.match[peer])
        most = max(self.match.values())  # with the leader itself that is a majority
        if most > self.commit and self.log[most - 1][0] == self.term:
            await self.advance(most)

    async def on_append(self, asked):
        if asked["term"] < self.term:
            return {"term": self.term, "ok": False}
        self.is_newer(asked["term"])
        self.role, self.leader = "follower", asked["who"]
        self.wait_again()
        begin = asked["begin"]
        if begin > len(self.log) or (begin and self.log[begin - 1][0] != asked["before"]):
            return {"term": self.term, "ok": False}
        for place, entry in enumerate(asked["entries"], begin):
            if place >= len(self.log) or self.log[place][0] != entry[0]:
                self.log[place:] = asked["entries"][place - begin :]
                self.save_log(place)
                break
        await self.advance(min(asked["commit"], begin + len(asked["entries"])))
        return {"term": self.term, "ok": True}

    async def advance(self, commit):
        if commit > self.commit:
            self.commit = commit
            async with self.applied:
                self.applied.notify_all()

    # --- clients ---

    async def on_do(self, asked):
        if self.role != "leader":
            return {"ok": False, "leader": self.leader}
        self.log.append([self.term, asked["value"]])
        term, end = self.term, len(self.log)
        self.save_log(end - 1)
        for peer in self.others:
            self.begin(self.push(peer))
        async with asyncio.timeout(2.0), self.applied:
            await self.applied.wait_for(lambda: self.commit >= end)
        if len(self.log) < end or self.log[end - 1][0] != term:
            raise OSError("another leader replaced it")
        return {"ok": True, "value": self.value(end)}

    def value(self, end):
        written = [value for _, value in self.log[:end] if value != "read"]
        return written[-1] if written else 0

    # --- the program ---

    async def call(self, peer, asked):
        async with asyncio.timeout(0.3):
            return await ask(peer, asked)

    async def serve(self, reader, writer):
        try:
            while line := await reader.readline():
                asked = json.loads(line)
                answer = await getattr(self, f"on_{asked['do']}")(asked)
                writer.write(json.dumps(answer).encode() + b"\n")
        except OSError:
            pass
        finally:
            writer.close()

    def begin(self, coroutine):
        async def quiet():
            try:
                await coroutine
            except (OSError, ValueError):
                pass

        task = asyncio.ensure_future(quiet())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def run(self):
        while True:
            await asyncio.sleep(HEARTBEAT)
            if self.role == "leader":
                for peer in self.others:
                    self.begin(self.push(peer))
            elif asyncio.get_running_loop().time() > self.until:
                self.begin(self.campaign())


async def ask(name, asked):
    """Send a line to a member, and return its answer."""
    reader, writer = await asyncio.open_connection(name, PORT)
    try:
        writer.write(json.dumps(asked).encode() + b"\n")
        return json.loads(await reader.readline())
    finally:
        writer.close()


async def member(name):
    peer = Peer(name)
    async with await asyncio.start_server(peer.serve, "0.0.0.0", PORT):
        await peer.run()


async def client(history, number, count):
    """Write and read at the member that is said to lead, or any."""
    chance = random.Random()
    name = chance.choice(NAMES)
    for place in range(count):
        await asyncio.sleep(chance.uniform(0.05, 0.5))
        value = "read" if chance.random() < 0.5 else number * 1000 + place + 1
        what = ("read", None) if value == "read" else ("write", value)
        begun = history.begin(*what, key="register", client=f"c{number}-{place}")
        try:
            async with asyncio.timeout(2.5):
                answer = await ask(name, {"do": "do", "value": value})
        except (OSError, ValueError):
            history.unknown(begun)
            name = chance.choice(NAMES)
        else:
            if answer["ok"]:
                history.answered(begun, answer["value"] if value == "read" else None)
            else:
                history.failed(begun)
                name = answer["leader"] or chance.choice(NAMES)


def scenario(cluster):
    for name in NAMES:
        cluster.host(name, member, name, respawn=0.5)
    history = cluster.history()
    for number in range(2):
        cluster.host(f"c{number}", client, history, number, 30, mortal=False)
    cluster.advance(12.0)
    cluster.calm()
    cluster.advance(4.0)
    cluster.host("c9", client, history, 9, 4, mortal=False)
    cluster.advance(4.0)
    history.check(linearizable(Register(0)))
