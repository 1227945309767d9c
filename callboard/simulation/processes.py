"""Real node processes for tests, on 127.0.0.1, that can be killed, frozen and cut off.

For each process the test holds a handle with the methods of `Node`. What has an effect on
the node (spawn, connect, remote_spawn …) is carried out there; refs that come back belong
to a node of the test that is linked to that process only, so whatever the test asks takes
the way that the process would take.
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

#: Seconds that a process may take until it listens, on a busy machine.
START_TIMEOUT: Final = 30.0

CALL_TIMEOUT: Final = 30.0


class NodeProcess:
    """A node in a process of its own."""

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
            RuntimeError: the process ended instead.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline().split()
        if len(line) != 2:
            msg = f"node process {self.name} ended with {self._process.wait()}; see its errors"
            raise RuntimeError(msg)
        self.address, self.node_id = line[0], bytes.fromhex(line[1])
        self._client.connect(self.address, START_TIMEOUT)
        self._host: ActorRef[Any] = self._client.remote_actor(f"{self.address}/{HOST_NAME}")

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    # --- what Node has ---

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the process's node and wait for the result."""
        call = NodeCall(method, args, kwargs or None)
        return self._host.ask(call, CALL_TIMEOUT).result(CALL_TIMEOUT)

    def spawn(self, actor_class: type[Actor], *args: Any, **kwargs: Any) -> ActorRef[Any]:
        """Spawn an actor there; its class is loaded from its file."""
        where = (tuple(source_of(actor_class)), args, kwargs)
        ref: ActorRef[Any] = self._host.ask(where, CALL_TIMEOUT).result(CALL_TIMEOUT)
        return ref

    def remote_spawn(self, on: str, name: str, *args: Any, **kwargs: Any) -> ActorRef[Any]:
        """Let that node spawn an actor on another one."""
        return self._call("remote_spawn", on, name, *args, **kwargs)  # type: ignore[no-any-return]

    def remote_actor(self, address: str) -> ActorRef[Any]:
        """Let that node look an actor up."""
        return self._call("remote_actor", address)  # type: ignore[no-any-return]

    def connect(self, address: str) -> bytes:
        """Let that node link with another one."""
        return self._call("connect", address)  # type: ignore[no-any-return]

    def register(self, name: str, ref: ActorRef[Any]) -> None:
        """Register an actor with that node."""
        self._call("register", name, ref)

    def find(self, name: str) -> Future[ActorRef[Any]]:
        """Look a name up from there."""
        return self._host.ask(NodeCall("find", (name,)), CALL_TIMEOUT)

    def ref(self, text: str) -> ActorRef[Any]:
        """Return the ref that a text stands for."""
        return self._client.ref(text)

    def monitor(self, ref: ActorRef[Any]) -> Future[Down]:
        """Return a future that is done when the actor ends or is lost, as seen from there."""
        return self._client.monitor(ref)

    def monitor_node(self, node_id: bytes) -> Future[NodeDown]:
        """Return a future that is done when no path leads to a node, as seen from there."""
        return self._client.monitor_node(node_id)

    # --- what is done to it ---

    def kill(self) -> None:
        """End the process with SIGKILL."""
        self._process.kill()

    def pause(self) -> None:
        """Freeze the process: it neither reads nor writes."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen process go on."""
        self._process.send_signal(signal.SIGCONT)

    def cut(self, other: "NodeProcess", seconds: float = 3.0) -> None:
        """Break the link with another node and refuse it for a time."""
        self._call("disconnect", other.node_id, seconds)

    def end(self) -> None:
        """Let the process end, and end the test's own node."""
        self._client.close()
        self.resume()
        assert self._process.stdin is not None
        self._process.stdin.close()

    def close(self) -> None:
        """End the process and the test's own node."""
        self.end()
        with self._process:  # waits for it, and closes its pipes
            try:
                self._process.wait(5.0)
            except subprocess.TimeoutExpired:
                self._process.kill()


class Processes:
    """Starts node processes, and ends them with the test."""

    def __init__(self) -> None:
        """Begin with none."""
        self._started: list[NodeProcess] = []

    def __call__(
        self, count: int = 2, *, spawnable: Mapping[str, type[Actor]] | None = None
    ) -> list[NodeProcess]:
        """Start `count` processes, each with a node that listens and offers `spawnable`."""
        first = len(self._started)
        made = [
            NodeProcess(chr(ord("a") + (first + index) % 26), spawnable or {})
            for index in range(count)
        ]
        self._started += made
        for process in made:
            process.ready()
        return made

    def close(self) -> None:
        """End all processes, together."""
        for process in self._started:
            process.end()
        for process in self._started:
            process.close()


#: The name under which a node process answers.
HOST_NAME: Final = "callboard.test-host"


@frozen_message("callboard.test.NodeCall")
class NodeCall:
    """Call a method of the node; answered by its result."""

    method: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] | None = None
