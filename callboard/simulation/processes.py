"""Real node processes for tests, on 127.0.0.1, that can be killed, frozen and disconnected.

The test holds a handle with the methods of `Node` for each process. Methods with an effect on
the node (spawn, connect, remote_spawn …) run in the process. The returned refs belong to a node
in the test process that is linked only to this node process, so messages of the test take the
same route as those of the process itself.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Final

from callboard.kernel.actors import Actor, ActorRef, Down, frozen_message
from callboard.kernel.environment import source_of
from callboard.kernel.events import NodeDown
from callboard.kernel.reply import Future
from callboard.node import Node

#: Seconds until a process must listen, on a busy machine.
START_TIMEOUT: Final = 30.0

CALL_TIMEOUT: Final = 30.0


class NodeProcess:
    """A handle of a node in a separate process."""

    def __init__(self, name: str, spawnable: Mapping[str, type[Actor]]) -> None:
        """Start the process; `ready` waits until it listens."""
        offered = {key: source_of(actor_class) for key, actor_class in spawnable.items()}
        self.name = name
        self._process = subprocess.Popen(  # noqa: S603  (our own interpreter and module)
            [sys.executable, "-m", "callboard.simulation.child", name, json.dumps(offered)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.address = ""
        self.node_id = b""
        self._client = Node(f"test-of-{name}")

    def ready(self) -> None:
        """Wait until the node listens, and link with it.

        Raises:
            RuntimeError: the process has ended.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline().split()
        if len(line) != 2:
            msg = f"node process {self.name} ended with {self._process.wait()}; see its errors"
            raise RuntimeError(msg)
        self.address, self.node_id = line[0], bytes.fromhex(line[1])
        self._client.connect(self.address, START_TIMEOUT)
        self._host: ActorRef = self._client.remote_actor(f"{self.address}/{HOST_NAME}")

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    # --- methods of Node ---

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the process's node and wait for the result."""
        call = NodeCall(method, args, kwargs or None)
        return self._host.ask(call, CALL_TIMEOUT).result(CALL_TIMEOUT)

    def spawn(self, actor_class: type[Actor], *args: Any, **kwargs: Any) -> ActorRef:
        """Spawn an actor in the process; its class is loaded from its file."""
        order = (tuple(source_of(actor_class)), args, kwargs)
        ref: ActorRef = self._host.ask(order, CALL_TIMEOUT).result(CALL_TIMEOUT)
        return ref

    def remote_spawn(self, on: str, name: str, *args: Any, **kwargs: Any) -> ActorRef:
        """Spawn an actor on another node, through this node."""
        return self._call("remote_spawn", on, name, *args, **kwargs)  # type: ignore[no-any-return]

    def remote_actor(self, address: str) -> ActorRef:
        """Look an actor up, through this node."""
        return self._call("remote_actor", address)  # type: ignore[no-any-return]

    def connect(self, address: str) -> bytes:
        """Link this node with another one."""
        return self._call("connect", address)  # type: ignore[no-any-return]

    def register(self, name: str, ref: ActorRef) -> None:
        """Register an actor with this node."""
        self._call("register", name, ref)

    def find(self, name: str) -> Future[ActorRef]:
        """Look a name up, through this node."""
        return self._host.ask(NodeCall("find", (name,)), CALL_TIMEOUT)

    def ref(self, text: str) -> ActorRef:
        """Parse the text of a ref."""
        return self._client.ref(text)

    def monitor(self, ref: ActorRef) -> Future[Down]:
        """Return a future for the end or the loss of an actor, as seen from this node."""
        return self._client.monitor(ref)

    def monitor_node(self, node_id: bytes) -> Future[NodeDown]:
        """Return a future for the loss of a node, as seen from this node."""
        return self._client.monitor_node(node_id)

    # --- faults ---

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self._process.kill()

    def pause(self) -> None:
        """Freeze the process with SIGSTOP."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume a frozen process."""
        self._process.send_signal(signal.SIGCONT)

    def cut(self, other: "NodeProcess", seconds: float = 3.0) -> None:
        """Break the link with another node and refuse new ones for some seconds."""
        self._call("disconnect", other.node_id, seconds)

    def end(self) -> None:
        """Ask the process to end, and close the test's own node."""
        self._client.close()
        self.resume()
        assert self._process.stdin is not None
        self._process.stdin.close()

    def close(self) -> None:
        """End the process, wait for it, and close the test's own node."""
        self.end()
        with self._process:  # waits for the process and closes its pipes
            try:
                self._process.wait(5.0)
            except subprocess.TimeoutExpired:
                self._process.kill()


class Processes:
    """Starts node processes, and ends them with the test."""

    def __init__(self) -> None:
        """Create an empty set of processes."""
        self._started: list[NodeProcess] = []

    def __call__(
        self, count: int = 2, *, spawnable: Mapping[str, type[Actor]] | None = None
    ) -> list[NodeProcess]:
        """Start `count` processes, each with a node that listens and offers `spawnable`."""
        first = len(self._started)
        processes = [
            NodeProcess(chr(ord("a") + (first + index) % 26), spawnable or {})
            for index in range(count)
        ]
        self._started += processes
        for process in processes:
            process.ready()
        return processes

    def close(self) -> None:
        """End all processes in parallel."""
        for process in self._started:
            process.end()
        for process in self._started:
            process.close()


#: Registered name of the actor that calls methods of the node.
HOST_NAME: Final = "callboard.test-host"


@frozen_message("callboard.test.NodeCall")
class NodeCall:
    """Request to call a method of the node; answered by its result."""

    method: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] | None = None
