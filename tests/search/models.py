"""Search models by name: small configurations for each test run, larger ones to publish."""

from dataclasses import dataclass
from typing import Any

from tests.basp.wire import A, B
from tests.search.explorer import Model
from tests.search.handshake import Handshake
from tests.search.lifetimes import Budget, Lifetimes
from tests.search.ownership import Owners, OwnershipBudget
from tests.search.relay import Relay
from tests.search.routing import LINE, RING, TAILED, Routing, failures


@dataclass(frozen=True)
class Search:
    """Models of one kind."""

    what: str
    small: tuple[Model[Any], ...]
    large: tuple[Model[Any], ...]


CROSSING = [[(A, B), (B, A)], [(A, B), (A, B)], [(B, A), (B, A)]]

#: The nodes that dial the stranger, and the nodes that it dials.
RELAYED = [("a", "b"), ("a", "a"), ("ab", ""), ("a", "bb"), ("a", "ab")]
RELAYED_TWICE = [("aa", "b")]

SETTLED = OwnershipBudget(members=0, settled=3)

SEARCHES = {
    "lifetimes": Search(
        "announce, release and down between a host and two holders that pass its ref on",
        (
            Lifetimes(Budget()),
            Lifetimes(Budget(sends=(2, 0), forwards=0, moves=1)),
            Lifetimes(Budget(sends=(1, 0), forwards=0, breaks=1, heals=1)),
            Lifetimes(Budget(watches=(1, 0), crashes=1)),
        ),
        (
            Lifetimes(Budget(sends=(2, 1))),
            Lifetimes(Budget(crashes=1)),
            Lifetimes(Budget(moves=1)),
            Lifetimes(Budget(breaks=1, heals=1)),
            Lifetimes(Budget(watches=(1, 0), moves=1, crashes=1)),
            Lifetimes(Budget(sends=(2, 0), forwards=0, moves=1, breaks=1, heals=1)),
            Lifetimes(Budget(sends=(2, 1), forwards=0, watches=(1, 0), moves=2)),
            Lifetimes(
                Budget(sends=(2, 0), forwards=0, watches=(1, 0), moves=2, breaks=1, heals=1)
            ),
            Lifetimes(Budget(sends=(2, 1), breaks=1, heals=1)),
            Lifetimes(Budget(sends=(2, 1), crashes=1)),
            Lifetimes(Budget(sends=(2, 1), moves=1)),
        ),
    ),
    "handshake": Search(
        "dials that cross, and the loss of a connection at any moment",
        (
            *(Handshake(dials) for dials in CROSSING),
            *(Handshake(CROSSING[0], (loss,)) for loss in ("cut", "break_off")),
        ),
        (
            *(Handshake(dials) for dials in CROSSING),
            *(Handshake(dials, (loss,)) for dials in CROSSING for loss in ("cut", "break_off")),
            Handshake([(A, B), (B, A), (A, B)]),
        ),
    ),
    "relay": Search(
        "a stranger between two nodes with a secret, who relays, reflects, replays and mixes",
        (
            *(Relay(*doors) for doors in RELAYED),
            Relay("a", "b", is_tls=True),
            Relay("a", "b", allow_unsealed="a"),
            Relay("a", "b", allow_unsealed="b"),
        ),
        (
            *(Relay(*doors) for doors in (*RELAYED, *RELAYED_TWICE)),
            Relay("ab", "ab", deliveries=4),
            *(Relay(*doors, is_tls=True) for doors in (*RELAYED, *RELAYED_TWICE)),
            *(Relay(*doors, allow_unsealed=node) for doors in RELAYED for node in "ab"),
        ),
    ),
    "routing": Search(
        "routing updates after the failure of each link and node of a line and two rings",
        tuple(Routing(*case) for edges in (LINE, RING) for case in failures(edges)),
        tuple(Routing(*case) for edges in (LINE, RING, TAILED) for case in failures(edges)),
    ),
    "ownership": Search(
        "who owns two slots of entities on three nodes, with the register and fences",
        (
            Owners(OwnershipBudget()),
            Owners(OwnershipBudget(kills=1)),
            Owners(SETTLED._replace(terms=1)),
            Owners(SETTLED._replace(kills=1, losses=1)),
        ),
        (
            Owners(OwnershipBudget()),
            Owners(OwnershipBudget(kills=1)),
            Owners(OwnershipBudget(suspicions=1)),
            Owners(OwnershipBudget(losses=1)),
            Owners(OwnershipBudget(terms=1)),
            Owners(OwnershipBudget(moves=1)),
            Owners(OwnershipBudget(kills=1, losses=1)),
            Owners(OwnershipBudget(kills=1, suspicions=1)),
            Owners(OwnershipBudget(members=3)),
            Owners(SETTLED._replace(terms=1)),
            Owners(SETTLED._replace(suspicions=1)),
            Owners(SETTLED._replace(kills=1, losses=1)),
            Owners(SETTLED._replace(kills=1, moves=1)),
            Owners(SETTLED._replace(losses=1, moves=1)),
        ),
    ),
}
