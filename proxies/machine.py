"""What tells this machine from others: the facts behind a node id."""

import itertools
import os
import time
from pathlib import Path
from typing import Final

from basp.node_id import NodeId, make_node_id

_STARTED_NS: Final = time.time_ns()
_INDEX: Final = itertools.count()


def new_node_id() -> NodeId:
    """Return the id of the next node of this process; no two are ever equal."""
    return make_node_id(_machine_facts(), _STARTED_NS, next(_INDEX), os.getpid())


def _machine_facts() -> bytes:
    facts = [*_network_addresses(), *_root_file_system()]
    # A sandbox may hide both; chance does as well: a restarted process has another id.
    return b"|".join(facts) if facts else os.urandom(16)


def _network_addresses() -> list[bytes]:
    found = []
    for entry in sorted(Path("/sys/class/net").glob("*/address")):
        try:
            address = entry.read_bytes().strip()
        except OSError:
            continue
        if address.strip(b"0:"):
            found.append(address)
    return found


def _root_file_system() -> list[bytes]:
    try:
        device = Path("/").stat().st_dev
        for entry in Path("/dev/disk/by-uuid").iterdir():
            if entry.stat().st_rdev == device:
                return [entry.name.encode()]
    except OSError:
        pass
    return []
