"""The part of a node that spawns: here, on other nodes, on worker processes, supervised."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from actors.actor import Actor
from actors.child import Child
from actors.errors import NotSpawnable
from actors.future import Future
from actors.options import options_of
from actors.reference import ActorRef
from actors.runner import Runner
from actors.supervision import BACKOFF
from actors.supervisor import Supervisor
from proxies.background import Background
from proxies.class_source import source_of
from proxies.messages import Spawn
from proxies.worker import Employer, Worker
from proxies.workers import WorkerPool

if TYPE_CHECKING:
    from actors.runtime import Runtime
    from proxies.broker import Broker
    from proxies.reach import Reach

A = TypeVar("A", bound=Actor)

Place = str | bytes | Worker | WorkerPool
"""Where an actor can be spawned: an address, a node id, a worker, a pool of workers."""


class Spawning(Background):
    """Makes actors, on this node and elsewhere."""

    runtime: "Runtime"
    _broker: "Broker"
    _reach: "Reach"
    #: The classes that other nodes may spawn here, by name.
    _offered: dict[str, type[Actor]]
    _pools: list[WorkerPool]

    def spawn(
        self, actor_class: type[A], *args: Any, on: Place | None = None, **kwargs: Any
    ) -> ActorRef[A]:
        """Spawn an actor here, or on another node that offers its class.

        Args:
            actor_class: a subclass of `Actor`, or of Thespian's.
            args: for its `__init__`.
            on: where instead of here: the address or id of a node that offers the class, a
                worker, or a pool of workers.
            kwargs: for its `__init__`.

        Raises:
            NotSpawnable: the other node does not offer the class, or options were given
                with it, which do not travel.
            NodeUnreachable: no node answers there.
            RemoteError: the actor's `__init__` raised there.
        """
        if on is not None:
            return self._wait(self.aspawn(actor_class, *args, on=on, **kwargs))
        return self.runtime.spawn(actor_class, args, kwargs)

    async def aspawn(
        self, actor_class: type[A], *args: Any, on: Place | None = None, **kwargs: Any
    ) -> ActorRef[A]:
        """Awaitable twin of `spawn`."""
        if on is None:
            return self.runtime.spawn(actor_class, args, kwargs)
        plain_class, _ = options_of(actor_class)
        name = plain_class.__qualname__
        if plain_class is not actor_class:
            msg = (
                f"options of with_options() do not travel to another node; set them as class "
                f"attributes of {name}, or offer a subclass of it there that has them"
            )
            raise NotSpawnable(msg)
        if isinstance(on, Worker | WorkerPool):
            return await on.aspawn(actor_class, *args, **kwargs)
        request = Spawn(name, args, kwargs or None, by_class=True)
        return await self._reach.spawn(on, request)

    def remote_spawn(
        self, on: str | bytes, name: str, *args: Any, **kwargs: Any
    ) -> ActorRef[Any]:
        """Spawn an actor on another node, by the name under which that node offers its class.

        Args:
            on: address (`basp://HOST:PORT`) or id of the node.
            name: one of the keys of that node's `spawnable`.
            args: for the actor's `__init__`; they travel as a message does.
            kwargs: for the actor's `__init__`.

        Raises:
            NotSpawnable: the node offers no class of that name.
            NodeUnreachable: no node answers there.
            RemoteError: the actor's `__init__` raised.
        """
        return self._wait(self.aremote_spawn(on, name, *args, **kwargs))

    async def aremote_spawn(
        self, on: str | bytes, name: str, *args: Any, **kwargs: Any
    ) -> ActorRef[Any]:
        """Awaitable twin of `remote_spawn`."""
        return await self._reach.spawn(on, Spawn(name, args, kwargs or None))

    def offer(self, name: str, actor_class: type[Actor]) -> None:
        """Let other nodes spawn a class here from now on, as `spawnable` does."""
        self._offered[name] = actor_class

    def workers(self, count: int | None = None) -> WorkerPool:
        """Start child processes with a node each, so that actors use more cores.

        They are linked to this node over socket pairs and offer what it offers; classes that
        are spawned on them are loaded from their modules or files.

        Args:
            count: how many; one for each core that this process may use by default.

        Raises:
            NotSpawnable: a class that this node offers cannot be loaded elsewhere.
            ValueError: the count is less than one, or the node is simulated.
            WorkerFailed: a process ended, or was not linked in time.
        """
        return self._wait(self.aworkers(count))

    async def aworkers(self, count: int | None = None) -> WorkerPool:
        """Awaitable twin of `workers`."""
        self._refuse_closed()
        if type(self._runner) is not Runner:
            msg = f"{self.name} is simulated and has no processes; give it more nodes instead"
            raise ValueError(msg)
        offers = {name: source_of(offered) for name, offered in self._offered.items()}
        employer = Employer(self.runtime, self._broker)
        wanted = len(os.sched_getaffinity(0)) if count is None else count
        pool = WorkerPool(employer, wanted, offers, self._wait)
        self._pools.append(pool)
        try:
            await pool.started()
        except BaseException:
            await pool.aclose()
            raise
        return pool

    def supervise(
        self,
        children: Sequence[Child],
        *,
        strategy: str = "one_for_one",
        intensity: tuple[int, float] = (3, 5.0),
        backoff: tuple[float, float] = BACKOFF,
    ) -> ActorRef[Supervisor]:
        """Start children under a supervisor, which starts them again when they end.

        Args:
            children: what to start, in this order.
            strategy: who is started again when a child ends: `one_for_one` only that child,
                `one_for_all` all, `rest_for_one` that child and those started after it.
            intensity: more than this many restarts within this many seconds end the supervisor.
            backoff: seconds of the shortest and the longest pause before a restart that soon
                follows another one of the same child.

        Raises:
            ValueError: the strategy is not known, or a number is negative.
            Exception: whatever the `__init__` of a child raised.
        """
        return self.runtime.spawn(Supervisor, (list(children), strategy, intensity, backoff))

    def _spawn_elsewhere(
        self, actor_class: type[A], args: tuple[Any, ...], kwargs: dict[str, Any], on: Any
    ) -> Future[ActorRef[A]]:
        return self._start(self.aspawn(actor_class, *args, on=on, **kwargs))
