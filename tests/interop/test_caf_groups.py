"""Groups of real CAF nodes: ours as a member of theirs, and theirs as members of ours."""

import pytest

from callboard import Actor, Down, Node, handler
from callboard.caf import Atom, CafGroup
from tests.interop.caf.real_node import real_nodes
from tests.interop.caf.service import WAIT, Service
from tests.polling import eventually

pytestmark = pytest.mark.slow


class GroupHost(Actor):
    """Hosts one group, as the actor behind a group of CAF does."""

    def __init__(self):
        self.members = []

    @handler
    def group(self, request: tuple):
        verb, *rest = request
        if verb == Atom("get"):
            return CafGroup("local", rest[0], self.me)
        if verb == Atom("join"):
            self.members.append(rest[0])
            self.monitor(rest[0])
        elif verb == Atom("leave"):
            self.members.remove(rest[0])
        elif verb == Atom("forward"):
            for member in self.members:
                member.tell(rest[0][0])
        return None

    @handler
    def ended(self, down: Down):
        self.members.remove(down.ref)

    @handler
    def count(self, _: None):
        return len(self.members)


@pytest.fixture
def node():
    with Node("ours") as node:
        yield node


def test_an_actor_of_ours_is_a_member_of_a_group_of_caf(node):
    with real_nodes() as (real,):
        names = node.remote_actor(f"caf://127.0.0.1:{real.serve('groups')}")
        group = names.ask((Atom("get"), "news")).result(WAIT)
        assert (group.module, group.name) == ("local", "news")
        assert names.ask((Atom("get"), "news")).result(WAIT) == group

        own = node.spawn(Service)
        group.broker.tell((Atom("join"), own))
        group.broker.tell((Atom("forward"), ("ours",)))  # to all members
        assert real.line() == "member ours"
        assert real.do("say theirs") == "said"
        eventually(lambda: own.ask(None).result(WAIT) == ["ours", "theirs"])
        assert real.line() == "member theirs"

        down = node.monitor(group.broker)
        group.broker.tell((Atom("leave"), own))
        real.process.kill()
        assert down.result(WAIT).reason == "unreachable"


def test_caf_nodes_are_members_of_a_group_that_ours_hosts(node):
    host = node.spawn(GroupHost)
    port = node.listen(wire="caf-0.17", publish=host)
    with real_nodes(2) as members:
        for real in members:
            assert real.do(f"join {port}") == "joined"
        eventually(lambda: host.ask(None).result(WAIT) == 2)
        host.tell((Atom("forward"), ("ours",)))
        for real in members:
            assert real.line() == "member ours"
        members[0].send("say theirs")
        assert {members[0].line(), members[0].line()} == {"said", "member theirs"}
        assert members[1].line() == "member theirs"

        members[1].process.kill()
        eventually(lambda: host.ask(None).result(WAIT) == 1)
