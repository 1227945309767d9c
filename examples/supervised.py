"""A supervisor: a worker that fails is started again, and found under its name.

Run it with `python examples/supervised.py`.
"""

from callboard import Actor, ActorRef, CallboardError, Child, Node, handler


class Divider(Actor):
    @handler
    def divide(self, pair: tuple) -> float:
        dividend, divisor = pair
        return dividend / divisor


def wait_for_another(node: Node, old: ActorRef[Divider]) -> ActorRef[Divider]:
    """Return the worker that runs after `old` ended."""
    node.monitor(old).result(5)
    while True:
        try:
            found = node.find("divider").result(5)
        except LookupError:
            continue
        if found != old:
            return found


def main() -> None:
    with Node("office") as node:
        node.supervise([Child(Divider, restart="permanent", name="divider")])
        worker = node.find("divider").result(5)
        print(worker.ask((6, 3)).result(5))
        try:
            worker.ask((1, 0)).result(5)
        except CallboardError as error:
            print(f"{type(error).__name__}: {error}")
        print(wait_for_another(node, worker).ask((9, 3)).result(5))


if __name__ == "__main__":
    main()
