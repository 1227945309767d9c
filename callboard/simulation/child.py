"""The program of a node process for tests; `processes` starts it.

    python -m callboard.simulation.child NAME OFFERED

OFFERED is JSON: name → module, file and qualified name of a class. Classes are loaded from
their files, never unpickled. The node prints its address and runs until its standard input
ends, so it never outlives the test that started it.
"""

import json
import sys
from typing import Any

from callboard.kernel.actors import ActorRef, handler
from callboard.kernel.context import SystemActor
from callboard.kernel.environment import ClassSource, load_class
from callboard.node import Node
from callboard.simulation.processes import HOST_NAME, NodeCall


class Host(SystemActor):
    """Calls methods of the node on behalf of the test."""

    @handler(cancellable=False)
    async def call(self, call: NodeCall) -> Any:
        """Call the async form of a method, if there is one, and return its result."""
        node = self.node
        method = getattr(node, f"a{call.method}", None)
        if method is not None:
            return await method(*call.args, **(call.kwargs or {}))
        result = getattr(node, call.method)(*call.args, **(call.kwargs or {}))
        return await result if hasattr(result, "__await__") else result

    @handler
    def spawn_from_file(self, where: tuple) -> ActorRef:  # type: ignore[type-arg]
        """Spawn an actor whose class is loaded from its file."""
        source, args, kwargs = where
        actor_class = load_class(ClassSource(*source))
        return self.runtime.start_actor(actor_class, tuple(args), kwargs)


def main() -> None:
    """Run a node until standard input ends."""
    name, offered = sys.argv[1], json.loads(sys.argv[2])
    classes = {key: load_class(ClassSource(*source)) for key, source in offered.items()}
    with Node(name, spawnable=classes) as node:
        node.register(HOST_NAME, node.spawn(Host))
        node.listen("127.0.0.1", 0)
        print(node.address, node.node_id.hex(), flush=True)  # noqa: T201
        sys.stdin.read()


if __name__ == "__main__":
    main()
