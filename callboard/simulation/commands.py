"""What a test sends to the node processes that it started."""

from dataclasses import dataclass
from typing import Any, Final

from proxies.messages import message

HOST_NAME: Final = "callboard.test-host"
"""The name under which a node process answers."""


@message("callboard.test.NodeCall")
@dataclass(frozen=True, slots=True)
class NodeCall:
    """Call a method of the node; answered by its result."""

    method: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] | None = None
