"""ZeroMQ sockets on a node's event loop: batches, keys, connections that are seen."""

import pytest
import zmq

from callboard import Node
from callboard.model.errors import InvalidOption
from callboard.proxies.errors import PortUnavailable, PublicAddress
from callboard.zeek.doors.zeromq_socket import FRAMES_A_TURN, Curve, CurveServer, ZeroMqSockets
from tests.polling import eventually

PUBLIC, SECRET = (key.decode() for key in zmq.curve_keypair())
OTHER = zmq.curve_keypair()[1].decode()


class Pulled:
    """A door with one PULL socket."""

    def __init__(self, node, curve=None, address="tcp://127.0.0.1:0", kind=zmq.PULL):
        self.messages, self.changes, self.runner = [], [], node.runtime.runner
        self.sockets = ZeroMqSockets(self.runner, curve)
        self.socket = self.sockets.bind(
            kind, address, self.messages.extend, self.changes.append, frames=4
        )


@pytest.fixture
def node():
    with Node() as made:
        yield made


@pytest.fixture
def pulled(node):
    made = Pulled(node)
    yield made
    node.runtime.post(made.sockets.close)


@pytest.fixture
def push():
    with zmq.Context() as context, context.socket(zmq.PUSH) as made:
        made.linger, made.sndtimeo = 0, 20_000
        yield made


def test_messages_come_in_their_order_and_connections_are_counted(pulled, push):
    push.connect(pulled.socket.address)
    for number in range(3 * FRAMES_A_TURN):
        push.send_multipart([b"a", b"%d" % number])

    eventually(lambda: len(pulled.messages) == 3 * FRAMES_A_TURN)
    assert pulled.messages == [[b"a", b"%d" % n] for n in range(3 * FRAMES_A_TURN)]
    assert pulled.socket.connections == 1
    push.close()
    eventually(lambda: pulled.socket.connections == 0)
    assert [change.is_up for change in pulled.changes] == [True, False]


def test_of_a_message_with_too_many_frames_only_the_first_are_kept(pulled, push):
    push.connect(pulled.socket.address)
    push.send_multipart([b"x"] * 5 * FRAMES_A_TURN)
    push.send_multipart([b"next"])

    eventually(lambda: len(pulled.messages) == 2)
    assert pulled.messages == [[b"x"] * 5, [b"next"]]


def test_nothing_is_read_in_a_pause_and_all_of_it_behind(pulled, push):
    push.connect(pulled.socket.address)
    push.send(b"1")
    eventually(lambda: len(pulled.messages) == 1)
    turns = []
    pulled.runner.post(pulled.socket.pause)
    pulled.runner.post(turns.append, "paused")
    eventually(lambda: turns)
    for number in range(100):
        push.send(b"%d" % number)
        pulled.runner.post(turns.append, number)
    eventually(lambda: len(turns) == 101)
    assert len(pulled.messages) == 1

    pulled.runner.post(pulled.socket.resume)
    eventually(lambda: len(pulled.messages) == 101)


@pytest.mark.parametrize(
    ("secret", "connects", "refused"),
    [(SECRET, 1, 0), (OTHER, 0, 1), ("", 0, 1)],
    ids=["known", "another", "none"],  # keys are made anew in each process
)
def test_only_those_whose_keys_are_known_connect(node, secret, connects, refused):
    server_public, server_secret = (key.decode() for key in zmq.curve_keypair())
    pulled = Pulled(node, CurveServer(server_secret, (PUBLIC,)), "tcp://0.0.0.0:0", zmq.XPUB)
    address = pulled.socket.address.replace("0.0.0.0", "127.0.0.1")
    changes, sockets = [], ZeroMqSockets(node.runtime.runner, Curve(server_public, secret))
    client = sockets.connect(zmq.XSUB, address, lambda _: None, changes.append, frames=1)

    eventually(lambda: changes)
    assert (client.connections, pulled.socket.connections) == (connects, connects)
    assert bool(pulled.sockets.refused) == bool(refused)
    assert secret or "keys" in changes[0].reason
    for each in (sockets, pulled.sockets):
        node.runtime.post(each.close)


def test_one_side_without_keys_is_told_so(node, pulled):
    changes, sockets = [], ZeroMqSockets(node.runtime.runner, Curve(PUBLIC))
    sockets.connect(zmq.XSUB, pulled.socket.address, lambda _: None, changes.append, frames=1)

    eventually(lambda: changes)
    assert "CURVE" in changes[0].reason
    node.runtime.post(sockets.close)


def test_a_socket_that_connects_tells_why_it_has_no_connection(node):
    changes, sockets = [], ZeroMqSockets(node.runtime.runner)
    client = sockets.connect(
        zmq.XSUB, "tcp://127.0.0.1:1", lambda _: None, changes.append, frames=1
    )
    eventually(lambda: changes)
    assert (client.connections, client.reason) == (0, "no answer")
    node.runtime.post(sockets.close)


def test_a_frame_that_is_too_large_ends_a_connection_that_is_made_again(node):
    with zmq.Context() as context, context.socket(zmq.XPUB) as server:
        server.linger = 0
        server.bind("tcp://127.0.0.1:0")
        changes, messages, sockets = [], [], ZeroMqSockets(node.runtime.runner)
        address = server.getsockopt(zmq.LAST_ENDPOINT).decode().rstrip("\0")
        limit = {zmq.MAXMSGSIZE: 1000}
        made = sockets.connect(
            zmq.XSUB, address, messages.extend, changes.append, frames=1, options=limit
        )
        node.runtime.post(made.send, [b"\1"])
        assert server.recv() == b"\1"
        server.send(bytes(1001))
        eventually(lambda: (False, 0, "the connection ended") in changes)
        eventually(lambda: changes[-1].is_up)
        eventually(lambda: server.send(b"x") or messages)
        assert messages[0] == [b"x"]
        node.runtime.post(sockets.close)


@pytest.mark.parametrize("verb", ["bind", "connect"])
@pytest.mark.parametrize(
    "address", ["tcp://here", "nonsense", "udp://127.0.0.1:1", "tcp://127.0.0.1:70000", "", 7]
)
def test_what_is_no_address_is_told_at_once(node, verb, address):
    sockets = ZeroMqSockets(node.runtime.runner)

    with pytest.raises(InvalidOption, match="not a ZeroMQ address"):
        getattr(sockets, verb)(zmq.PULL, address, print, print, frames=1)


def test_a_port_has_to_be_free_and_guarded(node, pulled):
    with pytest.raises(PublicAddress, match="CURVE"):
        Pulled(node, address="tcp://*:0")
    with pytest.raises(PublicAddress, match="CURVE"):
        Pulled(node, CurveServer(SECRET), address="tcp://0.0.0.0:0")
    with pytest.raises(PortUnavailable):
        Pulled(node, address=pulled.socket.address)


def test_keys_come_from_files_and_are_not_shown(tmp_path):
    for wrong in ("", "x" * 39, "\\" * 40, 7, "é" * 40):
        with pytest.raises(InvalidOption, match="not a CURVE key"):
            Curve(wrong)
    path = tmp_path / "keys.toml"
    path.write_text(f'server = "{PUBLIC}"\nsecret = "{SECRET}"\n')
    assert Curve.of_file(path) == Curve(PUBLIC, SECRET)
    assert SECRET not in repr(Curve(PUBLIC, SECRET))
    path.write_text(f'secret = "{SECRET}"\nclients = ["{PUBLIC}"]\n')
    assert CurveServer.of_file(path) == CurveServer(SECRET, (PUBLIC,))
    for text in ("server", "x = 1", f"server = 7\nsecret = '{SECRET}'"):
        path.write_text(text)
        with pytest.raises(InvalidOption, match=r"keys\.toml"):
            Curve.of_file(path)
