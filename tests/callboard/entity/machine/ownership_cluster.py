"""A few machines with one register and its fences: each request and answer is a step."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from callboard.entity.machine.ownership_machine import (
    Claimed,
    ClaimFailed,
    ClaimFences,
    DrainAsked,
    JoinAsked,
    KeepSlots,
    MemberGone,
    MembersProbed,
    MoveAsked,
    OwnershipEffect,
    OwnershipEvent,
    OwnershipMachine,
    PollDue,
    ProbeMembers,
    ReadTable,
    RegisterFailed,
    ReleaseSlots,
    ServeSlots,
    SlotsBusy,
    SlotsEmptied,
    StopSlots,
    TableAnnounced,
    TableChanged,
    TableRead,
    TableWritten,
    TermBegun,
    TermEnded,
    WriteTable,
)
from callboard.entity.machine.table import NOBODY, SharedState, Table, TableMember
from callboard.entity.state.interface import NO_FENCE, Fence

STATE = SharedState("s", "a file")


@dataclass
class MachineNode:
    """A machine, the slots that it serves, and the messages to and from it."""

    machine: OwnershipMachine
    epochs: dict[int, int] = field(default_factory=dict)
    stopped: set[int] = field(default_factory=set)
    #: Requests that have not arrived, and answers that have not come back.
    requests: list[OwnershipEffect] = field(default_factory=list)
    answers: list[OwnershipEvent] = field(default_factory=list)
    told: list[OwnershipEffect] = field(default_factory=list)
    is_dead: bool = False


class OwnershipCluster:
    """Nodes that share a register of a few slots."""

    def __init__(self, count: int, slots: int) -> None:
        self.slots = slots
        self.table = Table(slots=(NOBODY,) * slots)
        self.fences: dict[int, Fence] = dict.fromkeys(range(slots), NO_FENCE)
        self.nodes: dict[str, MachineNode] = {}
        for number in range(count):
            writer = "abcdef"[number]
            member = TableMember(f"{number:036x}")
            machine = OwnershipMachine(
                writer, member, count=slots, portion=1, polls_after_busy=1
            )
            self.nodes[writer] = MachineNode(machine)

    def step(self, writer: str, event: OwnershipEvent) -> None:
        """Pass an event to a node, and carry out at once the effects that need no answer."""
        node = self.nodes[writer]
        for effect in node.machine.step(event):
            match effect:
                case ServeSlots(epochs):
                    node.epochs |= epochs
                case KeepSlots(epochs):
                    kept = node.epochs.items()
                    node.epochs = {s: e for s, e in kept if epochs.get(s) == e}
                case ReleaseSlots(slots):
                    node.stopped -= set(slots)
                case StopSlots(slots):
                    assert not node.stopped, "one move at a time"
                    node.stopped |= set(slots)
                    node.requests.append(effect)
                case TableChanged(table):
                    self.tell(writer, table)
                case ReadTable() | WriteTable() | ProbeMembers() | ClaimFences():
                    node.requests.append(effect)
                case _:
                    node.told.append(effect)

    def tell(self, by: str, table: Table) -> None:
        """Send a table to the other members."""
        for writer, node in self.nodes.items():
            if writer != by and writer in table.members and not node.is_dead:
                node.answers.append(TableAnnounced(table.version))

    def arrive(self, writer: str, how: str) -> None:
        """Carry out the first request of a node, or lose it before or after it takes effect."""
        node = self.nodes[writer]
        request = node.requests.pop(0)
        node.answers.append(self._answer(writer, request, how))

    def _answer(self, writer: str, request: OwnershipEffect, how: str) -> OwnershipEvent:
        match request:
            case ReadTable():
                return RegisterFailed() if how == "lost" else TableRead(self.table)
            case WriteTable(table, expected):
                if how == "lost":
                    return RegisterFailed()
                is_written = self.table.register_version == expected
                if is_written:
                    self.table = table
                return TableWritten(None if how == "unknown" else is_written)
            case ProbeMembers(writers):
                gone = frozenset(each for each in writers if self.nodes[each].is_dead)
                return MembersProbed(gone if how == "done" else frozenset())
            case ClaimFences(epochs):
                held = {} if how == "lost" else self._claim(writer, epochs)
                return Claimed(held) if how == "done" else ClaimFailed()
            case StopSlots():
                return SlotsEmptied() if how == "done" else SlotsBusy()
        raise AssertionError(request)

    def _claim(self, writer: str, epochs: Mapping[int, int]) -> dict[int, Fence]:
        for slot, epoch in epochs.items():
            if self.fences[slot].epoch < epoch:
                self.fences[slot] = Fence(epoch, writer)
        found = {slot: self.fences[slot] for slot in epochs}
        return {s: fence for s, fence in found.items() if fence != (epochs[s], writer)}

    def suspect(self, writer: str, other: str) -> None:
        """Make a node consider another one dead, rightly or not."""
        member = self.nodes[writer].machine.table.members.get(other)
        if member is not None and writer != other:
            self.step(writer, MemberGone(other, member.joined))

    def check(self) -> None:
        """Check the rules that hold after each step."""
        for writer, node in self.nodes.items():
            machine = node.machine
            assert node.epochs == machine.served
            owned = machine.table.owned(writer)
            for slot, epoch in node.epochs.items():
                assert owned[slot] == epoch
                fence = self.fences[slot]
                assert fence.epoch > epoch or fence == (epoch, writer)
        for slot in range(self.slots):
            able = [
                writer
                for writer, node in self.nodes.items()
                if slot in node.epochs and self.fences[slot] == (node.epochs[slot], writer)
            ]
            assert len(able) <= 1

    def settle(self) -> None:
        """Deliver everything until nothing is in flight, and check repeatedly."""
        for _ in range(12):
            for writer, node in self.nodes.items():
                while not node.is_dead and (node.requests or node.answers):
                    while node.answers:
                        self.step(writer, node.answers.pop(0))
                    if node.requests:
                        self.arrive(writer, "done")
                    self.check()
                if not node.is_dead:
                    self.step(writer, PollDue(reads=True))

    def join(self, writer: str) -> None:
        """Make a running node a member."""
        if not self.nodes[writer].is_dead:
            self.step(writer, JoinAsked(STATE))

    def play(self, what: str, writer: str, how: Any) -> None:
        """Do one of the things that may happen to a node that lives."""
        node = self.nodes[writer]
        if node.is_dead:
            return
        match what:
            case "arrive" if node.requests:
                self.arrive(writer, how)
            case "answer" if node.answers:
                self.step(writer, node.answers.pop(0))
            case "look":
                self.step(writer, PollDue(reads=how))
            case "suspect":
                self.suspect(writer, how)
            case "move":
                self.step(writer, MoveAsked({0: how}))
            case "kill":
                node.is_dead = writer != "a"
            case "join" | "drain" | "end" | "begin":
                following = TermBegun(node.machine.member.term + 1)
                asked = {"join": JoinAsked(STATE), "drain": DrainAsked(), "end": TermEnded()}
                self.step(writer, asked.get(what, following))
