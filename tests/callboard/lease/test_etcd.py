"""What goes wrong with etcd: members that are away, answers that are lost, data put back."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from callboard import Entity, Node, handler
from callboard.actors.errors import WrongValue
from callboard.entity.state.backends import open_leases, open_state
from callboard.lease.errors import (
    DatabaseReplaced,
    OutcomeUnknown,
    StateCorrupt,
    StateUnavailable,
)
from callboard.lease.leases import LeaseValue
from tests.callboard.lease.etcd_server import EtcdServer, new_etcd, running_etcd
from tests.polling import eventually


@pytest.fixture
def server() -> Iterator[EtcdServer]:
    """A server that the test may kill."""
    made = new_etcd().start()
    yield made
    made.close()


@contextmanager
def deaf(answer: bytes = b"") -> Iterator[str]:
    """Serve a place that reads what comes, answers so at most, and closes the connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    made, _ = listening.accept()
                except OSError:
                    return
                with made:
                    made.recv(65536)
                    made.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            host, port = listening.getsockname()
            yield f"{host}:{port}"
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_a_member_that_is_away_is_passed_over() -> None:
    place = running_etcd().place
    with deaf() as silent:
        url = f"etcd://127.0.0.1:1,{silent},{place}/{silent}"
        with closing(open_leases(url, "a")) as leases:
            assert leases.write("n", LeaseValue("a", 1), 0)
            assert leases.read("n") == (LeaseValue("a", 1), 1)


def test_a_write_whose_answer_was_lost_perhaps_took_place() -> None:
    with deaf() as silent, closing(open_leases(running_etcd().new_prefix(), "a")) as leases:
        register: Any = leases
        before = register._members
        register._members = [*type(leases)(f"etcd://{running_etcd().place}")._members]
        register._members[0].port = int(silent.rpartition(":")[2])
        with pytest.raises(OutcomeUnknown, match="the value may have been written"):
            leases.write("n", LeaseValue("a", 1), 0)
        with pytest.raises(StateUnavailable, match="no member"):
            leases.read("n")
        register._members = before
        assert leases.write("n", LeaseValue("a", 2), 0)


@pytest.mark.slow
def test_a_write_that_reached_no_member_did_not_take_place(server: EtcdServer) -> None:
    leases = open_leases(server.new_prefix(), "a")
    server.kill()
    with pytest.raises(StateUnavailable, match="no member"):
        leases.write("n", LeaseValue("a", 1), 0)
    server.start()
    assert leases.write("n", LeaseValue("a", 2), 0)
    leases.close()


def test_data_that_were_put_back_are_told_once(server: EtcdServer) -> None:
    leases = open_leases(server.new_prefix(), "a")
    assert leases.write("n", LeaseValue("a", 1), 0)
    server.kill()
    server.start("other")
    with pytest.raises(DatabaseReplaced, match="leases start anew"):
        leases.read("n")
    assert leases.read("n") == (None, 0)
    leases.close()


def test_a_key_of_others_is_no_lease() -> None:
    url = running_etcd().new_prefix()
    with closing(open_leases(url, "a")) as leases:
        register: Any = leases
        register._members[0].put(f"{url.rpartition('/')[2]}/n", "theirs")
        with pytest.raises(StateCorrupt, match="a separate prefix"):
            leases.read("n")


@pytest.mark.parametrize(
    ("body", "status"), [(b"hello", b"200 OK"), (b"{}", b"200 OK"), (b"[]", b"404 Not Found")]
)
def test_what_is_no_etcd_is_said_to_be_none(body: bytes, status: bytes) -> None:
    pytest.importorskip("etcd3gw")
    answer = b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)
    with deaf(answer) as place, pytest.raises(StateUnavailable, match="etcd"):
        open_leases(f"etcd://{place}", "a")


@pytest.mark.parametrize("answer", [{}, {"header": {}}, ValueError("no JSON")])
def test_a_write_whose_answer_is_not_etcds_may_have_been_applied(answer: Any) -> None:
    with closing(open_leases(running_etcd().new_prefix(), "a")) as leases:
        register: Any = leases

        def answered(_: object) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

        register._members[0].transaction = answered
        with pytest.raises(OutcomeUnknown, match="may have been written"):
            leases.write("n", LeaseValue("a", 1, ""), 0)
        with pytest.raises(StateUnavailable, match="not as etcd"):
            leases.read("n")


@pytest.mark.parametrize(
    "url",
    [
        "etcd://",
        "etcd://a:b",
        "etcd://a:99999",
        "etcd://user:secret@a",
        "etcd://a?ca=x",
        "etcds://a?cert=x",
        "etcds://a?certs=x",
    ],
)
def test_a_url_of_another_shape_is_refused(url: str) -> None:
    pytest.importorskip("etcd3gw")
    with pytest.raises(WrongValue, match="write") as told:
        open_leases(url, "a")
    assert "\n" not in str(told.value)


def test_etcd_holds_no_state() -> None:
    with pytest.raises(WrongValue, match="leases='etcd://a:1'"):
        open_state("etcd://a:1", "a")


class Counted(Entity):
    """Lives in memory only."""

    def __init__(self) -> None:
        self.count = 0

    @handler
    def on_add(self, number: int) -> int:
        self.count += number
        return self.count


def test_entities_without_state_move_to_the_node_that_is_left() -> None:
    url = running_etcd().new_prefix()
    with Node("a") as a, Node("b") as b:
        a.listen("127.0.0.1", 0)
        b.connect(a.address)
        a.host(Counted, leases=url)
        assert a.entity(Counted, "k").ask(2).result(20) == 2
        b.host(Counted, leases=url)
        assert b.entity(Counted, "k").ask(3).result(20) in (3, 5)
        a.close()

        def answers() -> bool:
            asked = b.entity(Counted, "k").ask(1, timeout=5.0)
            return asked.exception(20) is None

        assert eventually(answers, 30.0)
