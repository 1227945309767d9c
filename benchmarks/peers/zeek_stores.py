"""Stores: Zeek Broker 1.4 in Python (python3-broker), and callboard.

The program beside this file runs with either package.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measure import Measure, Subject
from benchmarks.peers.zeek_broker import SYSTEM_PYTHON, prepare
from benchmarks.processes import printed_rate, serving

PROGRAM = Path(__file__).with_name("store_program.py")
OURS = (sys.executable, "-m", "benchmarks.peers.store_program", "callboard.broker")
PEER = (SYSTEM_PYTHON, str(PROGRAM), "broker")


def measure(command: Sequence[str], role: str, count: int, other: str = "") -> float:
    """Measure a role of the program, with a `keeper` or `mirror` beside it, or alone."""
    if not other:
        return printed_rate([*command, role, str(count)])
    with serving([*command, other]) as (_, port):
        return printed_rate([*command, role, str(count), "--peer", port])


def pair(role: str, ours: int, peer: int, *, other: str = "", kind: str = "") -> list[Subject]:
    """Return us and the peer in a role.

    Args:
        role: of the program.
        ours: how often we do it, `peer` how often the peer does.
        peer: the same of the peer.
        other: what runs in another process.
        kind: what tells this pair from another one of the same measure.
    """
    name = f"callboard{kind}"
    return [
        Subject(name, lambda share: measure(OURS, role, max(int(ours * share), 10), other)),
        Subject(
            f"Zeek Broker, Python{kind}",
            lambda share: measure(PEER, role, max(int(peer * share), 10), other),
            prepare,
            against=name,
        ),
    ]


def compared(title: str, unit: str, *subjects: Sequence[Subject]) -> Measure:
    """Return a measure of such pairs, ours first."""
    in_turn = [subject for two in subjects for subject in two]
    in_turn.sort(key=lambda subject: subject.against is not None)
    return Measure(title=title, unit=unit, subjects=tuple(in_turn))
