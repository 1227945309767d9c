"""What a node tells about itself: links, nodes in reach, accounts, counters, events."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from basp.accounting import Account
from basp.header import FIRST_ACTOR
from proxies.address import endpoint_text
from proxies.stats import AccountInfo, LinkInfo, NodeStats, Passage, ReachableNode

if TYPE_CHECKING:
    from actors.runtime import Runtime
    from proxies.broker import Broker


class Figures:
    """The part of a node that only looks."""

    runtime: "Runtime"
    name: str
    _broker: "Broker"

    def nodes(self) -> list[ReachableNode]:
        """List the nodes in reach, nearest first."""
        router, names = self._broker.router, self._broker.names
        found = [
            ReachableNode(node, names.get(node, ""), len(path), path[0])
            for node in router.reachable
            if (path := router.path(node))
        ]
        return sorted(found, key=lambda node: (node.hops, node.name, node.node_id))

    def links(self) -> list[LinkInfo]:
        """List the links to neighbours."""
        return [
            LinkInfo(
                peer,
                wire.peer_name,
                "" if wire.endpoint is None else endpoint_text(wire.endpoint),
                wire.frames_sent,
                wire.frames_received,
                wire.bytes_sent,
                wire.bytes_received,
                wire.waiting,
                wire.pauses,
            )
            for peer, wire in list(self._broker.wires.items())
        ]

    def accounts(self) -> dict[bytes, AccountInfo]:
        """Return what was sent to each other node, and what became of it."""
        accounts = list(self._broker.accounts.accounts.items())
        return {node: _account_info(account) for node, account in accounts}

    def report_now(self) -> None:
        """Tell the other nodes at once what arrived from them, instead of within the second."""
        self.runtime.runner.post(self._broker.report)

    def passages(self) -> list[Passage]:
        """Return the latest asks that this node forwarded for others, oldest first."""
        return list(self._broker.passages)

    def stats(self) -> NodeStats:
        """Return the node's counters."""
        runtime, broker = self.runtime, self._broker
        counters = runtime.counters
        depths = [
            cell.depth for cell in list(runtime.cells.values()) if cell.number >= FIRST_ACTOR
        ]
        return NodeStats(
            name=self.name,
            node_id=broker.node_id,
            actors=len(depths),
            spawned=counters.spawned,
            handled=runtime.handled,
            dead_letters=counters.dead_letters,
            unexpected=counters.unexpected,
            failures=counters.failures,
            forwarded=broker.forwarded,
            undeliverable=broker.undeliverable,
            waiting_asks=broker.waiting_asks,
            proxies=broker.proxy_count,
            ends=dict(counters.ends),
            refused_connections=broker.connector.refused,
            pauses=broker.connector.pauses,
            dropped_fields=broker.outgoing.codec.dropped_fields,
            refused_spawns=counters.refused_spawns,
            overflows=counters.overflows,
            expired=counters.expired,
            slow_handlers=counters.slow_handlers,
            handler_seconds=runtime.handler_seconds,
            mailbox_messages=sum(depths),
            mailbox_depth_max=max(depths, default=0),
        )

    def subscribed(self, subscriber: Callable[[object], None]) -> AbstractContextManager[None]:
        """Call `subscriber(event)` for each event while the block runs; it has to be quick."""
        return self.runtime.subscribed(subscriber)

    async def events(self) -> AsyncIterator[object]:
        """Iterate over what happens: dead letters, downs, links, restarts, as dataclasses."""
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[object] = asyncio.Queue()

        def put(event: object) -> None:
            loop.call_soon_threadsafe(queue.put_nowait, event)

        with self.subscribed(put):
            while True:
                yield await queue.get()


def _account_info(account: Account) -> AccountInfo:
    # What was sent is read last: other threads send meanwhile, and nothing is in flight twice.
    confirmed, dead_letters, lost = account.confirmed, account.dead_letters, account.lost
    sent = account.sent
    return AccountInfo(sent, confirmed, dead_letters, lost, sent - confirmed - lost)
