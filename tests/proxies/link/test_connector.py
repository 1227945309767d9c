"""Listening, dialing, dialing again: with nodes and with strangers on plain sockets."""

import socket
import threading
import time

import pytest

from callboard.actors.errors import NodeClosed, NodeUnreachable
from callboard.actors.future import Future
from callboard.actors.runner.runner import Runner
from callboard.basp.handshake import LinkConfig
from callboard.basp.node_id import NodeId
from callboard.proxies.link import attempt
from callboard.proxies.link import network as network_module
from callboard.proxies.link.connector import Connector, LinkOptions
from callboard.proxies.link.dialer import LAST_RETRY, Dial
from callboard.proxies.link.network import MachineNetwork
from callboard.proxies.rights.permissions import LinkAccess
from tests.proxies.cast import Echo, connect, eventually, everybody_knows, line, recorded

A, B = NodeId(b"a" * 18), NodeId(b"b" * 18)


class User:
    """What a broker is to its connector."""

    def __init__(self) -> None:
        self.up: list[bytes] = []
        self.down: list[str] = []

    def link_up(self, wire, peer):
        self.up.append(peer.node_id)

    def link_down(self, wire, reason, *, is_wanted):
        self.down.append(reason)

    def deliver(self, wire, frames):
        pass


#: Stands for the configuration that the test gives its side.
OF_THE_TEST = LinkAccess(has_own_keys=True)


class Side:
    """A connector on a runner of its own."""

    def __init__(self, node_id: NodeId) -> None:
        self.runner = Runner("side")
        self.user = User()
        options = LinkOptions(node_id)
        self.connector = Connector(self.runner, MachineNetwork(), options, lambda event: None)
        self.connector.start(self.user)
        self.config = LinkConfig(node_id, handshake_timeout=0.2, heartbeat=0.1)
        usual = self.connector.config
        self.connector.config = lambda access, published=None: (
            self.config if access is OF_THE_TEST else usual(access, published)
        )
        self.runner.start()

    def listen(self, port: int = 0) -> tuple[str, int]:
        sock = socket.create_server(("127.0.0.1", port))
        self.runner.post(self.connector.acceptor.listen, sock, (OF_THE_TEST, None))
        return sock.getsockname()

    def dial(self, endpoint, *, keep=False) -> Future:
        waiter = Future()
        self.runner.post(self.dial_now, endpoint, waiter, keep)
        return waiter

    def dial_now(self, endpoint, waiter, keep) -> None:
        self.connector.dialer.dial(endpoint, waiter, keep=keep)

    def close(self) -> None:
        self.runner.post(self.connector.close)
        self.runner.post(self.runner.stop)
        assert self.runner.stopped.wait(5)


@pytest.fixture
def sides():
    made = [Side(A), Side(B)]
    yield made
    for side in made:
        side.close()


def test_two_connectors_link(sides):
    a, b = sides
    endpoint = a.listen()

    dial = b.dial(endpoint).result(5)

    assert dial.peer == A
    eventually(lambda: a.user.up == [B] and b.user.up == [A])


def test_a_stranger_that_says_nothing_is_dropped_after_the_handshake_time(sides):
    endpoint = sides[0].listen()

    with socket.create_connection(endpoint, 5) as scanner:
        began = time.monotonic()
        scanner.settimeout(5)
        while scanner.recv(4096):
            pass

    assert 0.1 < time.monotonic() - began < 20
    assert sides[0].user.up == []


def test_a_stranger_that_says_a_byte_now_and_then_gains_no_time(sides):
    sides[0].config = LinkConfig(A, handshake_timeout=1.0, heartbeat=0.1)
    endpoint = sides[0].listen()

    with socket.create_connection(endpoint, 5) as slow:
        began = time.monotonic()
        slow.settimeout(0.02)
        said = 0
        while True:
            try:
                slow.sendall(b"\0")
                said += 1
                if not slow.recv(4096):
                    break
            except TimeoutError:
                continue
            except OSError:
                break

    assert said > 3
    assert 0.1 < time.monotonic() - began < 20
    eventually(lambda: not sides[0].connector._wires)
    assert sides[0].user.up == []


def test_many_scanners_do_not_keep_a_node_from_linking(sides):
    a, b = sides
    endpoint = a.listen()
    scanners = [socket.create_connection(endpoint, 5) for _ in range(100)]

    assert b.dial(endpoint).result(5).peer == A

    for scanner in scanners:
        scanner.close()


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 5, bytes(200), b"\xff" * 200]
)
def test_garbage_closes_the_connection_of_the_stranger_only(make_node, garbage):
    a, b = make_node("a"), make_node("b")
    a.listen()
    a.register("echo", a.spawn(Echo))
    echo = b.remote_actor(a.address + "/echo")
    host, port = a.address.removeprefix("basp://").split(":")

    with recorded(a) as events, socket.create_connection((host, int(port)), 5) as stranger:
        stranger.settimeout(5)
        stranger.sendall(garbage)
        try:
            while stranger.recv(4096):
                pass
        except ConnectionResetError:
            pass
        assert echo.ask("still here").result(5) == "still here"

    assert events == []


def test_a_stranger_may_leave_in_the_middle_of_a_handshake(make_node):
    a, b = make_node("a"), make_node("b")
    port = a.listen()
    for size in (0, 1, 59, 60, 61):
        with socket.create_connection(("127.0.0.1", port), 5) as stranger:
            stranger.sendall(b"\0\0\0\1"[:size].ljust(size, b"\0"))

    assert b.connect(a.address) == a.node_id


def test_a_refused_connection_names_the_address_and_what_to_do(make_node):
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]

    with pytest.raises(NodeUnreachable, match=rf"127\.0\.0\.1:{port}.*refused.*it is running"):
        make_node().connect(f"basp://127.0.0.1:{port}")


def test_host_names_are_looked_up(make_node):
    a, b = make_node("a"), make_node("b")
    port = a.listen()

    assert b.connect(f"basp://localhost:{port}") == a.node_id


def test_a_host_name_that_is_not_known_is_named(make_node):
    with pytest.raises(NodeUnreachable, match=r"no-such-host\.invalid"):
        make_node().connect("basp://no-such-host.invalid:1")


def test_all_addresses_of_a_host_name_are_tried(make_node, monkeypatch):
    a, b = make_node("a"), make_node("b")
    port = a.listen()
    with socket.create_server(("127.0.0.1", 0)) as gone:
        closed_port = gone.getsockname()[1]
    family, kind = socket.AF_INET, socket.SOCK_STREAM
    found = [
        (socket.AF_INET6, kind, 6, "", ("::1", closed_port, 0, 0)),
        (family, kind, 6, "", ("127.0.0.1", closed_port)),
        (family, kind, 6, "", ("127.0.0.1", port)),
    ]

    def look_up(host, *_, flags=0, **__):
        if flags & socket.AI_NUMERICHOST:
            raise socket.gaierror
        return found

    monkeypatch.setattr(network_module.socket, "getaddrinfo", look_up)

    assert b.connect(f"basp://many.example:{port}") == a.node_id


def test_a_connection_attempt_ends_when_nobody_answers(sides, monkeypatch):
    """A full backlog swallows connection attempts as a black hole does."""
    monkeypatch.setattr(attempt, "CONNECT_LIMIT", 0.1)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as hole:
        fillers = []
        for _ in range(3):
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex(hole.getsockname())
            fillers.append(sock)

        with pytest.raises(NodeUnreachable, match="timed out"):
            sides[0].dial(hole.getsockname()).result(5)

        for sock in fillers:
            sock.close()


def test_a_kept_link_comes_back_when_the_listener_does_on_the_same_port(make_node):
    a, b = make_node("first"), make_node("b")
    port = a.listen()
    b.connect(a.address)
    a.close()
    eventually(lambda: b.nodes() == [])

    second = make_node("second")
    eventually(lambda: _listens(second, port))

    eventually(lambda: [node.name for node in b.nodes()] == ["second"])
    assert len(b.links()) == 1


def _listens(node, port):
    try:
        return node.listen("127.0.0.1", port)
    except OSError:
        return None


def test_retries_back_off_with_a_random_part_up_to_a_limit(sides, monkeypatch):
    pauses: list[float] = []
    dialer = sides[0].connector.dialer
    monkeypatch.setattr(dialer._runner, "call_later", lambda pause, *_: pauses.append(pause))
    dial = Dial(("127.0.0.1", 1))

    for _ in range(12):
        dialer._retry(dial)
        dial.timer = None

    for count, pause in enumerate(pauses):
        least = min(LAST_RETRY, 0.1 * 2**count)
        assert least <= pause <= 1.5 * least


def test_join_keeps_trying_until_the_seed_is_there_and_logs_that_once(make_node, caplog):
    caplog.set_level("INFO")
    with socket.create_server(("127.0.0.1", 0)) as later:
        port = later.getsockname()[1]
    b = make_node("b", join=[f"basp://127.0.0.1:{port}"])
    assert b.nodes() == []
    eventually(
        lambda: any(
            dial.backoff.attempts > 1 for dial in b._broker.connector.dialer._dials.values()
        )
    )
    told = [
        line
        for line in caplog.messages
        if f"no node answers at basp://127.0.0.1:{port}" in line
    ]
    assert len(told) == 1

    a = make_node("a")
    eventually(lambda: _listens(a, port))

    eventually(lambda: [node.name for node in b.nodes()] == ["a"])


def test_a_link_that_is_cut_on_purpose_comes_back(make_node):
    a, b = make_node("a"), make_node("b")
    line(a, b)

    with recorded(a) as events:
        b.disconnect(a.node_id, 0.2)
        eventually(lambda: any(type(event).__name__ == "LinkDown" for event in events))

    everybody_knows(a, b)


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(10))
def test_nodes_that_dial_each_other_at_once_have_exactly_one_link(make_node, attempt):
    a, b = make_node("a"), make_node("b")
    a.listen()
    b.listen()
    gate = threading.Barrier(4)
    found: list[bytes] = []

    def dial(here, there):
        gate.wait()
        found.append(here.connect(there.address))

    pairs = [(a, b), (b, a), (a, b), (b, a)]
    threads = [threading.Thread(target=dial, args=pair) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(found) == sorted([a.node_id, b.node_id] * 2)
    for here, there in ((a, b), (b, a)):
        echo = there.spawn(Echo)
        assert here.ref(str(echo)).ask("x").result(5) == "x"
        assert len(here.links()) == 1
    eventually(lambda: len(a._broker.connector._wires) == len(b._broker.connector._wires) == 1)


def test_a_full_mesh_that_dials_all_at_once_has_one_link_for_each_pair(make_node):
    nodes = [make_node(f"n{index}") for index in range(5)]
    for node in nodes:
        node.listen()
    dials = [
        threading.Thread(target=here.connect, args=(there.address,))
        for here in nodes
        for there in nodes
        if here is not there
    ]
    for dial in dials:
        dial.start()
    for dial in dials:
        dial.join()

    for node in nodes:
        eventually(lambda node=node: len(node.links()) == 4)


def test_connecting_to_oneself_fails_clearly(make_node):
    a = make_node()
    a.listen()

    with pytest.raises(NodeUnreachable):
        a.connect(a.address)


def test_a_closed_node_dials_no_more(make_node):
    a, b = make_node(), make_node()
    a.listen()
    b.close()

    with pytest.raises(NodeClosed):
        b.connect(a.address)


def test_a_second_connect_to_a_neighbour_makes_no_second_link(make_node):
    a, b = make_node(), make_node()
    connect(b, a)

    assert b.connect(a.address) == a.node_id

    eventually(a.links)  # the dialer may know of the link first
    assert len(a.links()) == 1


def test_the_published_actor_is_found_whoever_dialed_first(make_node):
    a, b = make_node(), make_node()
    b.listen()
    a.listen(publish=(echo := a.spawn(Echo)))
    a.connect(b.address)  # the link that will hold the pair tells nothing of a's port

    assert b.remote_actor(a.address) == echo
