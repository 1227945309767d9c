"""A small Raft: one register on three machines, as a program of actors.

Members elect a leader for a term; it appends clients' commands to its log and to the logs of
the others, and commits and applies commands that a majority has on disk. Reads go through the
log as well. (Ongaro and Ousterhout, "In search of an understandable consensus algorithm",
2014.)
"""

import random
from dataclasses import dataclass

from callboard import Actor, handler, message
from callboard.errors import CallboardError
from callboard.simulation import Register, linearizable, reachable

TICK = 0.1
NOT_LEADER = "not leader"


@message("planted.raft.Begin")
@dataclass(frozen=True)
class Begin:
    """Start to follow the time."""


@message("planted.raft.Canvass")
@dataclass(frozen=True)
class Canvass:
    """Ask one other member for its vote."""

    peer: str
    term: int


@message("planted.raft.Push")
@dataclass(frozen=True)
class Push:
    """Send one other member what its log lacks."""

    peer: str
    term: int


@message("planted.raft.Vote")
@dataclass(frozen=True)
class Vote:
    term: int
    candidate: str
    last_index: int
    last_term: int


@message("planted.raft.Append")
@dataclass(frozen=True)
class Append:
    term: int
    index: int
    before: int
    entries: list[tuple[int, str]]
    commit: int


@message("planted.raft.Do")
@dataclass(frozen=True)
class Do:
    """A client's command: a number to write, or None for a read."""

    value: str


class Member(Actor):
    """A member; its promises are on its disk."""

    def __init__(self, name, disk, peers, members):
        self.name, self.peers = name, peers
        self.random = random.Random(f"{name} {disk.random.random()}")
        self.term, self.vote, self.log = 0, "", []
        self.role, self.quiet, self.commit = "follower", 0, 0
        self.next, self.match, self.votes, self.refs = {}, {}, set(), {}
        self.patience = self.random.randint(8, 16)
        self.file = disk.open("raft", append=True)
        disk.sync_folder("/")
        content = self.file.pread(self.file.size(), 0)
        whole = content[: content.rfind(b"\n") + 1]
        self.file.truncate(len(whole))
        for line in whole.decode(errors="replace").splitlines():
            self.replay(line.split())
        members[name] = self

    # --- the disk ---

    def replay(self, words):
        """Take over a line: a vote in a term, or an entry that ends the log."""
        if len(words) != 4 or words[3] != "." or "\0" in "".join(words):
            return
        if words[0] == "vote":
            self.term, self.vote = int(words[1]), words[2].strip("-")
        else:
            index, term = words[0].split("/")
            self.log[int(index) :] = [(int(term), words[1])]

    def write(self, line):
        data = f"{line} .\n".encode()
        if self.file.write(data) < len(data):
            raise OSError("the disk is full")

    def save_vote(self):
        self.write(f"vote {self.term} {self.vote or '-'}")
        self.file.fsync()

    def save_entries(self, index):
        for place, (term, value) in enumerate(self.log[index:], index):
            self.write(f"{place}/{term} {value} -")
        self.file.fsync()

    # --- elections ---

    @handler(concurrent=True)
    async def on_begin(self, _: Begin) -> None:
        while True:
            await self.sleep(TICK)
            self.quiet += 1
            if self.role == "leader":
                self.push()
            elif self.quiet > self.patience:
                self.campaign()

    def campaign(self):
        self.step_down(self.term + 1, vote=self.name)
        self.role, self.votes = "candidate", {self.name}
        for peer in self.peers:
            self.me.tell(Canvass(peer, self.term))

    def step_down(self, term, vote=""):
        """Advance to a later term."""
        self.role, self.quiet = "follower", 0
        self.patience = self.random.randint(8, 16)
        self.term, self.vote = term, vote
        self.save_vote()

    @handler(concurrent=True)
    async def on_canvass(self, msg: Canvass) -> None:
        last = self.log[-1][0] if self.log else 0
        asked = Vote(msg.term, self.name, len(self.log), last)
        term, granted = 0, False
        while not term and self.role == "candidate" and self.term == msg.term:
            term, granted = await self.ask_peer(msg.peer, asked)
            if not term:
                await self.sleep(TICK)
        if term > self.term:
            self.step_down(term)
        elif granted and self.role == "candidate" and self.term == msg.term:
            self.votes.add(msg.peer)
            if len(self.votes) * 2 > len(self.peers) + 1:
                self.role = "leader"
                self.next = dict.fromkeys(self.peers, len(self.log))
                self.match = dict.fromkeys(self.peers, 0)
                reachable("a leader is elected")
                self.push()

    @handler
    def on_vote(self, msg: Vote) -> list:
        if msg.term > self.term:
            self.step_down(msg.term)
        last = self.log[-1][0] if self.log else 0
        is_current = (msg.last_term, msg.last_index) >= (last, len(self.log))
        if msg.term < self.term or self.vote not in ("", msg.candidate) or not is_current:
            return [self.term, False]
        self.vote, self.quiet = msg.candidate, 0
        self.save_vote()
        return [self.term, True]

    # --- the log ---

    def push(self):
        for peer in self.peers:
            self.me.tell(Push(peer, self.term))

    @handler(concurrent=True)
    async def on_push(self, msg: Push) -> None:
        if self.role != "leader" or self.term != msg.term:
            return
        index = self.next[msg.peer]
        entries = self.log[index : index + 20]
        before = self.log[index - 1][0] if index else 0
        asked = Append(self.term, index, before, entries, self.commit)
        term, fits = await self.ask_peer(msg.peer, asked)
        if term > self.term:
            self.step_down(term)
        elif term and self.role == "leader" and self.term == msg.term:
            if not fits:
                self.next[msg.peer] = min(self.next[msg.peer], max(0, index - 1))
                return
            self.match[msg.peer] = max(self.match[msg.peer], index + len(entries))
            self.next[msg.peer] = max(self.next[msg.peer], self.match[msg.peer])
            self.count()

    def count(self):
        """Commit the entries that a majority has, if the last one is of this term."""
        have = sorted([len(self.log), *self.match.values()])
        most = have[len(have) // 2]
        if most > self.commit and self.log[most - 1][0] == self.term:
            self.commit = most

    @handler
    def on_append(self, msg: Append) -> list:
        if msg.term < self.term:
            return [self.term, False]
        if msg.term > self.term:
            self.step_down(msg.term)
        self.role, self.quiet = "follower", 0
        if msg.index > len(self.log) or (
            msg.index and self.log[msg.index - 1][0] != msg.before
        ):
            return [self.term, False]
        for place, entry in enumerate(msg.entries, msg.index):
            if place >= len(self.log) or self.log[place][0] != entry[0]:
                self.log[place:] = [tuple(each) for each in msg.entries[place - msg.index :]]
                self.save_entries(place)
                break
        self.commit = max(self.commit, min(msg.commit, msg.index + len(msg.entries)))
        return [self.term, True]

    async def ask_peer(self, peer, asked):
        """Ask another member; nothing is known where it does not answer."""
        try:
            if peer not in self.refs:
                self.refs[peer] = await self.node.aremote_actor(f"{self.peers[peer]}/raft", 0.3)
            return await self.refs[peer].ask(asked, timeout=0.3)
        except CallboardError:
            self.refs.pop(peer, None)
            return 0, False

    # --- clients ---

    @handler(concurrent=True)
    async def on_do(self, msg: Do) -> str:
        if self.role != "leader":
            return NOT_LEADER
        term, index = self.term, len(self.log)
        self.log.append((term, msg.value))
        self.save_entries(index)
        self.push()
        while self.commit <= index:
            await self.sleep(TICK)
            if len(self.log) <= index or self.log[index][0] != term:
                raise RuntimeError("another leader replaced it")
        if self.log[index][0] != term:
            raise RuntimeError("another leader replaced it")
        return self.read(index)

    def read(self, index):
        """Return the last number that was written by then."""
        written = [value for _, value in self.log[: index + 1] if value != "read"]
        return written[-1] if written else "none"


def scenario(cluster):  # noqa: C901 - a program and its client
    """Write and read one register at whoever takes itself for the leader."""
    members, refs = {}, {}
    nodes = cluster(3, topology="mesh")
    addresses = {node.name: node.address for node in nodes}

    def start(node):
        peers = {name: at for name, at in addresses.items() if name != node.name}
        members.pop(node.name, None)
        refs[node.name] = node.spawn(Member, node.name, cluster.disk(node), peers, members)
        node.register("raft", refs[node.name])
        refs[node.name].tell(Begin())

    for node in nodes:
        start(node)
    cluster.restarted = start
    history = cluster.history()

    def do(name, value, client):
        what = "read" if value == "read" else "write"
        begun = history.begin(what, value, key="register", client=client)

        def done(future):
            if future.cancelled() or future.exception() is not None:
                history.unknown(begun)
            elif future.result() == NOT_LEADER:
                history.failed(begun)
            else:
                history.answered(begun, future.result())

        refs[name].ask(Do(value), timeout=3.0).on_done(done)

    def act(number, chance):
        leaders = sorted(name for name, each in members.items() if each.role == "leader")
        if leaders:
            name = chance.choice(leaders)
            do(name, "read" if chance.random() < 0.5 else str(number), name)

    for number, chance in cluster.steps(40):
        act(number, chance)
    cluster.calm()
    cluster.advance(5.0)
    for number in range(2):
        act(number + 1_000, random.Random(number))
        cluster.advance(3.0)
    history.check(linearizable(Register("none")))
