"""One input of a target: plain values, so that a file can keep it for ever."""

import json
from typing import Any, Protocol

READ = 64 * 1024
"""What one read may bring on top of every limit."""

Case = dict[str, Any]


class Violation(AssertionError):
    """An input showed a defect."""


class Target(Protocol):
    """Something that reads bytes of a peer."""

    name: str

    def make(self, seed: int) -> Case:
        """Return the input of a seed."""

    def run(self, case: Case) -> int:
        """Feed an input; returns the number of frames or payloads that were read.

        Raises:
            Violation: the target broke a promise; any other exception is one as well.
        """


def require(condition: object, problem: str) -> None:
    """Raise a violation unless `condition` holds."""
    if not condition:
        raise Violation(problem)


def dump_case(case: Case) -> str:
    """Write a case as text."""
    return json.dumps(case, default=lambda data: {"hex": bytes(data).hex()}, indent=1)


def load_case(text: str) -> Case:
    """Read a case that `dump_case` wrote."""
    found: Case = json.loads(
        text, object_hook=lambda item: bytes.fromhex(item["hex"]) if "hex" in item else item
    )
    return found
