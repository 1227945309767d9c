"""Control payloads: downs, routing updates and delivery reports."""

import random

from callboard.basp.accounting import Accounts
from callboard.basp.control import DETAIL_LIMIT, pack_down, read_down
from callboard.basp.errors import RemoteProtocolError
from callboard.basp.frame import Frame
from callboard.basp.header import HEADER_SIZE, Operation
from callboard.basp.node_id import NodeId
from callboard.basp.routing.router import Router
from callboard.cbor.plain import write_plain
from tests.fuzz.case import Case, require
from tests.fuzz.mutation import mutate_bytes

_PAYLOADS = 30
ME, PEER, THIRD = NodeId(b"a" * 18), NodeId(b"b" * 18), NodeId(b"c" * 18)
_DOWN, _ROUTES, _REPORT = (
    int(Operation.DOWN_MESSAGE),
    int(Operation.ROUTING_UPDATE),
    int(Operation.DELIVERY_REPORT),
)


def _updates() -> list[bytes]:
    """Return a peer's routing updates: real ones, with paths and cuts."""
    peer, made = Router(PEER), []
    others = [NodeId(bytes([number]) * 18) for number in range(1, 6)]
    peer.names.update({node: "ä" * number for number, node in enumerate(others)})
    for changes in (
        *(peer.add_peer(node) for node in (ME, *others)),
        *(peer.remove_peer(node) for node in others[:3]),
    ):
        made += [payload for node, payload in changes.updates if node == ME]
    return made


_VALID: dict[int, list[bytes]] = {
    _DOWN: [pack_down(PEER, 7, ME, 1, text)[HEADER_SIZE:] for text in ("", "x", "é" * 99)],
    _ROUTES: _updates(),
    _REPORT: [write_plain([[epoch, 5, 1, 2] for epoch in range(n)]) for n in (0, 1, 3, 64)],
}


class Control:
    """Feeds a router and a book of accounts that live through many payloads."""

    name = "control"

    def make(self, seed: int) -> Case:
        """Return kinds and payloads."""
        rng = random.Random(seed)
        frames = []
        for _ in range(_PAYLOADS):
            kind = rng.choice((_DOWN, _ROUTES, _ROUTES, _REPORT))
            payload = rng.choice(_VALID[kind])
            if rng.random() < 0.85:
                payload = mutate_bytes(rng, payload, _VALID[kind])
            frames.append([kind, payload])
        return {"frames": frames}

    def run(self, case: Case) -> int:
        """Check routes and accounts after each payload."""
        router, accounts = Router(ME), Accounts()
        router.add_peer(PEER)
        router.add_peer(THIRD)
        accounts.account(PEER).sent += 20
        for kind, payload in case["frames"]:
            try:
                self._feed(router, accounts, kind, payload)
            except RemoteProtocolError:
                continue
            finally:
                _check(router, accounts)
        router.remove_peer(PEER)
        router.remove_peer(THIRD)
        require(not router.reachable, "nodes are in reach without a link")
        require(not router.next_hops, "hops are left without a link")
        return len(case["frames"])

    def _feed(self, router: Router, accounts: Accounts, kind: int, payload: bytes) -> None:
        if kind == _DOWN:
            frame = Frame(kind, len(payload), 1, PEER, ME, 7, 0, payload)
            require(len(read_down(frame)[2]) <= DETAIL_LIMIT, "a detail is too long")
        elif kind == _ROUTES:
            for _, update in router.receive(PEER, payload).updates:
                Router(THIRD).receive(ME, update)
        else:
            accounts.receive_report(PEER, payload)


def _check(router: Router, accounts: Accounts) -> None:
    for node in router.reachable:
        path = router.path(node)
        require(path and path[0] in (PEER, THIRD) and path[-1] == node, f"path {path!r}")
        require(ME not in path, "a path leads through ourselves")
        require(router.next_hops.get(node) == path[0], "hop and path differ")
    account = accounts.account(PEER)
    require(account.in_flight >= 0, "more is confirmed than was sent")
    require(0 <= account.dead_letters <= account.confirmed <= account.sent, "accounts differ")
    require(0 <= account.lost <= account.sent, "more is lost than was sent")
