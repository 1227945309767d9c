"""Which methods may be called from outside, and how."""

import pytest

from callboard import Actor, Child, Supervisor, handler
from callboard.actors.dispatch import callable_methods
from callboard.actors.errors import NoSuchMethod, RemoteError
from tests.actors.sample import Echo


class Mixin:
    def mixed_in(self):
        return "mixin"


class Account(Mixin, Actor):
    rate = 3

    def __init__(self, total=0):
        self.total = total

    def add(self, k, *, times=1):
        self.total += k * times
        return self.total

    async def slowly(self, k):
        await self.sleep(0.001)
        return self.add(k)

    def later(self):
        promise = self.promise()
        self._cell.runner.call_later(0.001, promise.set_result, "later")

    def fail(self):
        raise KeyError("no")

    def _private(self): ...

    @property
    def shown(self): ...

    @staticmethod
    def static(): ...

    @classmethod
    def of_class(cls): ...

    @handler
    def number(self, msg: int) -> int:
        return msg

    def receiveMsg_str(self, msg, sender): ...

    def receiveUnrecognizedMessage(self, msg, sender): ...


class Narrow(Account):
    remote_methods = frozenset({"add", "_private"})


def test_public_functions_of_the_users_classes_can_be_called():
    assert callable_methods(Account) == {"add", "slowly", "later", "fail", "mixed_in"}


def test_remote_methods_narrows_them():
    assert callable_methods(Narrow) == {"add"}


def test_a_subclass_can_hide_a_method_and_overrides_handlers_as_handlers():
    class Less(Account):
        add = None

        def number(self, msg):
            return msg

    assert callable_methods(Less) == {"slowly", "later", "fail", "mixed_in"}


def test_methods_run_in_the_actor(runtime):
    account = runtime.start_actor(Account, (40,))

    assert account.call(Account.add, 1).result(5) == 41
    assert account.call(Account.add, 1, times=2).result(5) == 43
    assert account.call(Account.slowly, 1).result(5) == 44
    assert account.call(Account.later).result(5) == "later"
    assert account.proxy().add(1, times=0).result(5) == 44
    assert account.proxy().mixed_in().result(5) == "mixin"


@pytest.mark.parametrize(
    "name",
    ["send", "spawn", "number", "shown", "static", "of_class", "total", "createActor", "x"],
)
def test_another_name_fails_with_no_such_method_and_has_no_effect(runtime, name):
    account = runtime.start_actor(Account)

    with pytest.raises(NoSuchMethod, match=f"Account has no callable method '{name}'"):
        getattr(account.proxy(), name)().result(5)
    assert account.call(Account.add, 1).result(5) == 1


def test_a_private_name_is_refused_before_it_is_sent(runtime):
    with pytest.raises(NoSuchMethod, match="not public"):
        runtime.start_actor(Account).proxy()._private()


def test_a_method_that_remote_methods_excludes_cannot_be_called(runtime):
    with pytest.raises(NoSuchMethod):
        runtime.start_actor(Narrow).call(Narrow.slowly, 1).result(5)


def test_a_method_that_raises_fails_the_call(runtime):
    with pytest.raises(RemoteError, match="KeyError: 'no'"):
        runtime.start_actor(Account).call(Account.fail).result(5)


def test_a_supervisor_can_be_asked_for_its_children(runtime):
    supervisor = runtime.start_actor(Supervisor, ([Child(Echo)],))

    [child] = supervisor.call(Supervisor.children).result(5)

    assert child.ask("x").result(5) == "x"


def test_a_call_with_wrong_arguments_fails_and_the_actor_continues(runtime):
    account = runtime.start_actor(Account, (1,))

    with pytest.raises(RemoteError, match="TypeError: .*unexpected keyword argument"):
        account.proxy().add(1, often=2).result(5)
    with pytest.raises(RemoteError, match="TypeError: .*required positional argument"):
        account.proxy().slowly().result(5)
    assert account.call(Account.add, 1).result(5) == 2


def test_a_name_instead_of_a_method_is_refused_with_a_correction(runtime):
    with pytest.raises(TypeError, match=r"not 'add'; by its name: ref\.proxy\(\)\.add\(1\)"):
        runtime.start_actor(Account).call("add", 1)
