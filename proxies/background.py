"""Coroutines of a node on its runner's loop, for threads that block and for futures."""

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from actors.current import current_cell
from actors.errors import NodeClosed, WouldBlock, WouldDeadlock
from actors.future import Future

if TYPE_CHECKING:
    from actors.runner import Runner

T = TypeVar("T")


class Background:
    """What the blocking methods of a node stand on: each has an awaitable twin and runs it."""

    def __init__(self, runner: "Runner", name: str) -> None:
        self.name = name
        self._runner = runner
        self._closed = False
        #: What `_start` began and nobody has finished.
        self._started: set[Future[Any]] = set()

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a twin to its end for a thread that may block; twins have limits of their own."""
        twin = getattr(coroutine, "__name__", "")
        cell = current_cell.get()
        if cell is not None and self._runner.is_runner_thread():
            coroutine.close()
            msg = f"this call would hold up {cell.ref}; await node.{twin}(…) instead"
            raise WouldDeadlock(msg)
        if cell is not None and cell.runner.may_block and cell.runner.is_runner_thread():
            return self._start(coroutine).result()  # a detached actor's thread is its own
        if asyncio._get_running_loop() is not None:  # noqa: SLF001
            coroutine.close()
            msg = f"this call would block the event loop; await node.{twin}(…) instead"
            raise WouldBlock(msg)
        return self._start(coroutine).result()

    def _start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the runner's loop; its outcome comes as a future of ours."""
        future: Future[T] = Future()

        async def run() -> None:
            try:
                future.set_result(await coroutine)
            except asyncio.CancelledError:
                if self._closed:
                    future.set_exception(NodeClosed(f"{self.name} was closed meanwhile"))
                future.cancel()
                raise
            except BaseException as error:
                future.set_exception(error)
                if not isinstance(error, Exception):
                    raise
            finally:
                self._started.discard(future)

        self._started.add(future)
        if self._closed:
            coroutine.close()
            self._started.discard(future)
            self._refuse_closed()
        loop = self._runner.loop
        loop.call_soon_threadsafe(_keep_task, loop, run())
        return future

    def _refuse_closed(self) -> None:
        if self._closed:
            msg = f"{self.name} is closed; make another node"
            raise NodeClosed(msg)


_TASKS: set[asyncio.Task[Any]] = set()  # asyncio itself keeps only weak references


def _keep_task(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, None]) -> None:
    task = loop.create_task(coroutine)
    _TASKS.add(task)
    task.add_done_callback(_TASKS.discard)
