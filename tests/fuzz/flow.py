"""The codec of flows, one side of a flow, and the table of a flow broker."""

import random
from typing import Any

from callboard.flow.errors import MalformedMessage, RemoteFlowError
from callboard.flow.protocol.association import AssociationTable, CallFactory
from callboard.flow.protocol.machine import FlowMachine
from callboard.flow.protocol.message import Message, encode_flow, object_text, read_head
from tests.fuzz.case import Case, require
from tests.fuzz.mutation import mutate_bytes

_PEERS = 4


class Flows:
    """Feeds damaged messages to everything that reads them."""

    name = "flow"

    def make(self, seed: int) -> Case:
        """Return messages, each with the routing id of its sender."""
        rng = random.Random(seed)
        corpus = [_message(rng) for _ in range(8)]
        messages = [
            mutate_bytes(rng, data, corpus) if rng.random() < 0.6 else data
            for data in rng.choices(corpus, k=rng.randrange(1, 60))
        ]
        return {"messages": messages, "senders": [rng.randint(1, _PEERS) for _ in messages]}

    def run(self, case: Case) -> int:
        """Read each message in three ways; only typed errors come out."""
        messages: list[bytes] = case["messages"]
        giver, taker = FlowMachine("extract", 5), FlowMachine("inject", 5)
        giver.open()
        table = AssociationTable(lambda: "key")
        for data, sender in zip(messages, case["senders"], strict=True):
            _read(data)
            for machine in (giver, taker):
                _feed(machine, data)
            for effect in table.receive(sender, data, 0.0):
                if isinstance(effect, CallFactory):
                    _answer(table, effect)
        for peer in range(1, 2 * _PEERS + 1):
            table.down(peer, "end")
        require(len(table) == 0, "flows are left behind")
        return len(messages)


def _message(rng: random.Random) -> bytes:
    about: dict[str, Any] = {"flow": rng.choice(["BOT", "DAT", "PAY", "EOT", "BOT"])}
    if rng.random() < 0.8:
        about["direction"] = rng.choice(["extract", "inject"])
        about["credit"] = rng.randint(0, 6)
    if rng.random() < 0.2:
        about["cid"], about["cid_key"] = rng.randint(1, _PEERS), "key"
    payload = tuple(rng.randbytes(rng.choice((0, 3, 260))) for _ in range(rng.randrange(3)))
    return encode_flow(object_text(about).encode(), rng.randrange(8), payload)


def _read(data: bytes) -> None:
    try:
        message = Message.decode(data)
        require(Message.decode(message.encode()) == message, "a message changed on its way")
    except MalformedMessage:
        pass
    try:
        read_head(data)
    except MalformedMessage:
        pass


def _feed(machine: FlowMachine, data: bytes) -> None:
    try:
        machine.receive(data)
    except (MalformedMessage, RemoteFlowError):
        pass
    held = machine.credit + machine.waiting
    require(0 <= held <= machine.total_credit, f"{held} credit of {machine.total_credit}")


def _answer(table: AssociationTable, effect: CallFactory) -> None:
    """Be the handler of every second flow."""
    if effect.cid % 2:
        table.receive(effect.cid + _PEERS, effect.bot.encode(), 0.0)
