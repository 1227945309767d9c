"""An actor whose annotations are text, as `from __future__ import annotations` makes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from callboard import Actor, handler

if TYPE_CHECKING:
    from decimal import Decimal


class Texts(Actor):
    @handler
    def later(self, msg: Later) -> Decimal:
        return msg.text

    @handler
    def union(self, msg: int | bytes) -> str:
        return "int | bytes"


@dataclass
class Later:
    text: str
