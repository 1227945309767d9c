"""An entity whose journal is read."""

from dataclasses import dataclass
from typing import Any

from callboard import Entity, event, handler, message, upcast


@message("journal-tests.Added")
@dataclass(frozen=True)
class Added:
    item: str
    cents: int = 0


class Cart(Entity):
    name = "journal-tests.Cart"

    def __init__(self) -> None:
        self.items: list[str] = []

    @handler
    def on_text(self, msg: str) -> int:
        self.persist(Added(msg, len(self.items)))
        return len(self.items)

    @event
    def on_added(self, event: Added) -> None:
        self.items.append(event.item)


class LaterCart(Cart):
    """The class of a later release."""

    name = "journal-tests.Cart"

    @upcast("journal-tests.Added", 1)
    def older(self, fields: dict[str, Any]) -> dict[str, Any]:
        return {**fields, "item": fields["item"].upper()}


class OddCart(Cart):
    """A class whose upcast needs an entity, which a journal does not have."""

    name = "journal-tests.Cart"

    @upcast("journal-tests.Added", 1)
    def older(self, fields: dict[str, Any]) -> dict[str, Any]:
        return {**fields, "item": self.items[0]}
