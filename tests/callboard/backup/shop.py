"""A node whose thread writes to an entity, then to a log, then to a store, again and again.

So at any moment: numbers in the store <= numbers in the log <= events of the entity.
"""

import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from callboard import Entity, Node, event, handler, message
from callboard.commitlog import CommitLog, Retention
from callboard.store import Backend, Store, attach_master
from callboard.topics.hub import Hub

STATE, LOG, STORE = "shop.db", "logs/cpu", "things.db"


@message("tests.backup.Added")
@dataclass(frozen=True)
class Added:
    number: int


class Counter(Entity):
    name = "Counter"

    def __init__(self) -> None:
        self.total = 0

    @handler
    def add(self, number: int) -> list[object]:
        fence = self.fence
        self.persist(Added(number))
        return [self.total, fence]

    @handler(read_only=True)
    def read(self, _: None) -> int:
        return self.total

    @event
    def added(self, change: Added) -> None:
        self.total += change.number


class Shop:
    """The node with its entity, its log and its store."""

    def __init__(self, folder: Path, **log_options: object) -> None:
        folder.mkdir(exist_ok=True)
        self.node = Node("shop")
        self.node.host(Counter, state=f"sqlite:{folder / STATE}")
        self.log = CommitLog(folder / LOG, **log_options)  # type: ignore[arg-type]
        self.store: Store = attach_master(
            Hub.of(self.node), "things", Backend.SQLite, {"path": str(folder / STORE)}
        )

    def write(self, number: int) -> str:
        """Write a number everywhere; return the fence that the entity had."""
        counter = self.node.entity(Counter, "one")
        _, fence = counter.ask(1).result(10)
        self.log.append("numbers", number)
        self.store.put("number", number)
        return str(fence)

    def total(self) -> int:
        counter = self.node.entity(Counter, "one")
        return int(counter.ask(None).result(10))

    def close(self) -> None:
        self.store.close()
        self.log.close()
        self.node.close()


def main(folder: str) -> None:
    """Serve, and print each number after it was written everywhere."""
    shop = Shop(Path(folder), segment_bytes=4096, retain=Retention(records=2000))
    print(shop.node.listen(), flush=True)

    def work() -> None:
        number = shop.total()
        while True:
            number += 1
            shop.write(number)
            print(number, flush=True)

    threading.Thread(target=work, daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1])
