"""The environment of a node: its runner, its network, its identity.

A real node uses threads, TCP and the identity of this machine. A simulation passes other
objects, and the code of the node is the same.
"""

import itertools
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from callboard.actors.runner.collector import relax
from callboard.actors.runner.runner import Runner
from callboard.basp.node_id import NodeId, make_node_id
from callboard.basp.registry import DEFAULT_REGISTRY, MessageRegistry
from callboard.proxies.link.network import MachineNetwork, Network
from callboard.support.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class NodeEnvironment:
    """Factories of a node's runner, sockets and id, and the types that may travel."""

    make_runner: Callable[[str], Runner]
    network: Network
    make_node_id: Callable[[], NodeId]
    registry: MessageRegistry = DEFAULT_REGISTRY


def real_surroundings() -> NodeEnvironment:
    """Return the environment outside of simulations, and prepare the process for it."""
    relax()
    return NodeEnvironment(Runner, MachineNetwork(), new_node_id)


_STARTED_NS: Final = time.time_ns()
_INDEX: Final = itertools.count()


def new_node_id() -> NodeId:
    """Return the id of the next node of this process; no two are ever equal."""
    return make_node_id(_machine_facts(), _STARTED_NS, next(_INDEX), os.getpid())


def _machine_facts() -> bytes:
    """Return bytes that differ from machine to machine."""
    facts = [*_network_addresses(), *_root_file_system()]
    # A sandbox may hide both facts. Random bytes are sufficient, because a restarted process
    # has to have another id anyway.
    return b"|".join(facts) if facts else os.urandom(16)


def _network_addresses() -> list[bytes]:
    """Return the hardware addresses of the network interfaces."""
    addresses = []
    for entry in sorted(Path("/sys/class/net").glob("*/address")):
        try:
            address = entry.read_bytes().strip()
        except OSError:
            continue
        if address.strip(b"0:"):
            addresses.append(address)
    return addresses


def _root_file_system() -> list[bytes]:
    """Return the id of the root file system, if it has one."""
    with suppress(OSError):
        device = Path("/").stat().st_dev
        for entry in Path("/dev/disk/by-uuid").iterdir():
            if entry.stat().st_rdev == device:
                return [entry.name.encode()]
    return []
