"""The parent's side of one worker process: start it, tell it what to offer, see it end."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar

from actors.actor import Actor
from actors.errors import NotSpawnable
from actors.future import Future
from actors.reference import ActorRef
from basp.header import SPAWN_SERVER
from proxies.class_source import ClassSource, source_of
from proxies.errors import WorkerFailed
from proxies.messages import Spawn

if TYPE_CHECKING:
    from actors.runtime import Runtime
    from proxies.broker import Broker

A = TypeVar("A", bound=Actor)

MODULE: Final = "proxies.worker_process"

EXIT_TIME: Final = 3.0
"""Seconds that a worker may take to end; then it is killed."""


@dataclass(frozen=True, slots=True)
class Employer:
    """What workers need of the node that started them."""

    runtime: "Runtime"
    broker: "Broker"


class Worker:
    """A node in a child process; `on=worker` spawns there."""

    def __init__(
        self,
        employer: Employer,
        name: str,
        offers: dict[str, ClassSource],
        ended: Callable[["Worker", str], object],
    ) -> None:
        """Start the process, in the background.

        Args:
            employer: the node that it is linked to.
            name: of its node, for people.
            offers: the classes that it offers from the beginning; what it is to offer later
                is added.
            ended: called with the reason on a thread of its own when the process has ended.
        """
        self.name = name
        #: Done when its node is linked and offers the classes, or with `WorkerFailed`.
        self.ready: Future[Worker] = Future(f"worker {name}")
        self.node_id = b""
        self.pid = 0
        self.started_at = employer.runtime.runner.now()
        self._employer = employer
        self._offers = offers
        self._ended = ended
        self._offered: dict[str, Future[None]] = {}
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closing = False
        self._is_over = False
        self._control, self._their_control = socket.socketpair()
        self._thread = threading.Thread(
            target=self._attend, name=f"callboard-{name}", daemon=True
        )
        self._thread.start()

    def __repr__(self) -> str:
        return f"<Worker {self.name}, process {self.pid}>"

    # --- for users ---

    async def aspawn(self, actor_class: type[A], *args: Any, **kwargs: Any) -> ActorRef[A]:
        """Spawn an actor there; its class is loaded from its module or file.

        Raises:
            NotSpawnable: the class is local to a function, or cannot be loaded there.
            NodeUnreachable: the worker ended.
            RemoteError: the actor's `__init__` raised there.
        """
        source = source_of(actor_class)
        await self._offer(source)
        server = self._employer.runtime.ref_to(self.node_id, SPAWN_SERVER)
        return await server.ask(Spawn(source.key, args, kwargs or None))  # type: ignore[no-any-return]

    @property
    def is_running(self) -> bool:
        """True from when it is ready until its process or link ends."""
        return self.ready.done() and self.ready.exception() is None and not self._is_over

    # --- for its pool ---

    def close(self) -> None:
        """Let the process end; `join` waits for it."""
        self._is_closing = True
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        """End the process at once."""
        self._is_over = True
        if self._process is not None:
            self._process.kill()

    def join(self) -> None:
        """Wait until the process has ended; kill it when it takes too long."""
        self._thread.join(EXIT_TIME)
        if self._thread.is_alive():
            self.kill()
            self._thread.join(EXIT_TIME)

    def linked(self) -> None:
        """The link to some node is established: perhaps it is ours."""
        if self.node_id and self.node_id in self._employer.broker.router.next_hops:
            self.ready.set_result(self)

    def _offer(self, source: ClassSource) -> Future[None]:
        with self._lock:
            offered = self._offered.get(source.key)
            if offered is None:
                self._offers[source.key] = source
                offered = self._expect(source.key)
                self._say([source.key, *source])
                if self._is_over:
                    offered.set_exception(WorkerFailed(f"worker {self.name} ended"))
        return offered

    def _expect(self, key: str) -> Future[None]:
        offered: Future[None] = Future(f"{self.name} loading {key}")
        self._offered[key] = offered
        return offered

    # --- the thread that attends to the process ---

    def _attend(self) -> None:
        reason = "it could not be started"
        try:
            self._start()
            with (
                contextlib.suppress(OSError),  # reset: it ended
                self._control.makefile("r", encoding="utf-8") as lines,
            ):
                self._listen(lines)
            reason = self._reap()
        except OSError as error:
            reason = f"it could not be started: {error}"
        finally:
            failed = WorkerFailed(f"worker {self.name} ended: {reason}")
            with self._lock:
                self._is_over = True
                self._control.close()
                offered = list(self._offered.values())
            self.ready.set_exception(failed)
            for loading in offered:
                loading.set_exception(failed)
            self._ended(self, reason)

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        runtime, connector = self._employer.runtime, self._employer.broker.connector
        numbers = (self._their_control.fileno(), theirs.fileno())
        try:
            self._process = subprocess.Popen(  # noqa: S603  # our own interpreter and module
                [sys.executable, "-P", "-m", MODULE, *map(str, numbers)],
                stdin=subprocess.DEVNULL,
                pass_fds=numbers,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            self._their_control.close()
        self.pid = self._process.pid
        runtime.runner.post(partial(connector.adopt, ours, dialer=False))
        with self._lock:
            offers = dict(self._offers)
            for key in offers:
                self._expect(key)
        about = {
            "offers": offers,
            "name": self.name,
            "parent": runtime.node_id.hex(),
            "limits": asdict(connector.limits),
            "python_path": os.environ.get("PYTHONPATH"),
        }
        self._say(about)

    def _say(self, what: object) -> None:
        with contextlib.suppress(OSError):  # it ended: whoever waits is told
            self._control.sendall(json.dumps(what).encode() + b"\n")

    def _listen(self, lines: IO[str]) -> None:
        for line in lines:
            said = json.loads(line)
            if "node" in said:
                self.node_id = bytes.fromhex(said["node"])
                for offered in self._offered.values():
                    offered.set_result(None)  # it links when it has loaded them
                self._employer.runtime.runner.post(self.linked)
            elif "offered" in said:
                self._offered[said["offered"]].set_result(None)
            else:
                key = said["refused"]
                text = f"{key} cannot be loaded in worker {self.name}: {said['why']}"
                self._offered[key].set_exception(NotSpawnable(text))

    def _reap(self) -> str:
        assert self._process is not None
        try:
            code = self._process.wait(EXIT_TIME)
        except subprocess.TimeoutExpired:  # it closed the socket and did not end
            self._process.kill()
            code = self._process.wait()
        if self._is_closing:
            return "closed"
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
