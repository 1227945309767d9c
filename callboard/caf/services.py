"""The two actors that CAF expects on every node: the spawn server and the registry of names."""

from collections.abc import Callable
from typing import Any, Final

from callboard.caf.errors import CafError, SystemError17
from callboard.caf.stand_in import error_of
from callboard.caf.wire.connection import CONFIG_SERVER, SPAWN_SERVER
from callboard.caf.wire.message import U16, Atom, TypedMessage
from callboard.caf.wire.reader import CafActor
from callboard.kernel.actors import ActorRef
from callboard.kernel.context import NodeContext
from callboard.kernel.errors import CallboardError, NotSpawnable
from callboard.kernel.reply import Future
from callboard.kernel.topology import DIRECTORY, Lookup, Spawn
from callboard.kernel.topology import SPAWN_SERVER as SPAWNER

#: The key with which CAF asks for the address of a node that it knows indirectly.
_CONNECTIVITY: Final = "basp.default-connectivity-tcp"

#: Number of the address family in lists of addresses.
_IPV4: Final = 0
_IPV6: Final = 1

#: Answers with the names of their types and their values.
Answer = Callable[[tuple[str, ...], tuple[Any, ...]], object]

_POINTER: Final = ("@strong_actor_ptr",)


class Services:
    """Answers the requests of CAF nodes to these two actors.

    Attributes:
        endpoint: returns the address of a port of this wire; None without one.
    """

    def __init__(self, context: NodeContext, own: Any) -> None:
        self._context, self._own = context, own
        self.endpoint: Callable[[], tuple[str, int] | None] = lambda: None

    def handle(self, target: int, values: tuple[Any, ...], answer: Answer) -> None:
        """Answer a request."""
        match (target, *values):
            case (1, Atom("sys"), Atom("get"), "info"):
                server = CafActor(SPAWN_SERVER, self._own)
                names = ("@atom", "@str", "@strong_actor_ptr", "@str")
                answer(names, (Atom("ok"), "info", server, "spawn_server"))
            case (1, Atom("spawn"), str(name), tuple(args), *_):
                self._spawn(name, args, answer)
            case (2, Atom("get"), Atom(name)):
                self._find(name, answer)
            case (2, Atom("get"), str(key)):
                self._value(key, answer)
            case _:
                _refuse(answer, CafError(SystemError17.UNEXPECTED_MESSAGE))

    def _spawn(self, name: str, args: tuple[Any, ...], answer: Answer) -> None:
        """Spawn an actor of an offered class."""
        spawner = self._context.ref_of(self._context.node_id, SPAWNER)

        def spawned(future: Future[Any]) -> None:
            error = future.exception()
            if error is None:
                answer(_POINTER, (future.result(),))
            elif isinstance(error, NotSpawnable):
                _refuse(answer, CafError(SystemError17.UNKNOWN_TYPE, "system", str(error)))
            else:
                code = SystemError17.CANNOT_SPAWN_ACTOR_FROM_ARGUMENTS
                _refuse(answer, CafError(code, "system", str(error)))

        spawner.ask(Spawn(name, args)).on_done(spawned)

    def _find(self, name: str, answer: Answer) -> None:
        """Answer with the actor that is registered under a name, or with none."""
        numbers = {"SpawnServ": SPAWN_SERVER, "ConfigServ": CONFIG_SERVER}
        if name in numbers:
            answer(_POINTER, (CafActor(numbers[name], self._own),))
            return
        directory = self._context.ref_of(self._context.node_id, DIRECTORY)

        def answered(future: Future[ActorRef | None]) -> None:
            try:
                answer(_POINTER, (future.result(),))
            except CallboardError as error:
                _refuse(answer, error_of(error))

        directory.ask(Lookup(name)).on_done(answered)

    def _value(self, key: str, answer: Answer) -> None:
        """Answer a request for a value of the configuration.

        Only the address of a port is known.
        """
        endpoint = self.endpoint() if key == _CONNECTIVITY else None
        if endpoint is None:
            answer((), ())
            return
        host, port = endpoint
        addresses = {_IPV6 if ":" in host else _IPV4: [host]}
        names = ("@str", "@message")
        answer(names, (key, TypedMessage(("@u16", "@address_listing"), (U16(port), addresses))))


def _refuse(answer: Answer, error: CafError) -> None:
    """Answer with an error."""
    answer(("@error",), (error,))
