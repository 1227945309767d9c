"""Sealed links between nodes, and somebody between them who passes bytes on."""

import contextlib
import logging
import socket
import threading

import pytest

from callboard import Actor, Rights, errors, handler
from callboard.basp.frame import pack_frame
from callboard.basp.header import Operation
from callboard.proxies.events import LinkDown
from callboard.proxies.link.limits import Limits
from callboard.proxies.traffic.paths import describe_node
from tests.polling import eventually

SECRET = "long random secret"


class Safe(Actor):
    def __init__(self):
        self.opened = []

    @handler
    def text(self, message: str) -> str:
        self.opened.append(message)
        return "the combination is 4711"

    def read_opened(self):
        return self.opened

    @handler
    def data(self, message: bytes) -> bytes:
        return message


class Relay:
    """Listens where a node dials, and passes what it hears on to another port, and back."""

    def __init__(self, target):
        self.target = target
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"basp://127.0.0.1:{self.listener.getsockname()[1]}"
        self.sockets = []
        self.heard = {True: b"", False: b""}
        #: What is done to the bytes of a direction, with all that came before.
        self.change = lambda _is_to_target, data: data
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                far = connect(self.target)
                self.sockets += [near, far]
                for source, sink, way in ((near, far, True), (far, near, False)):
                    threading.Thread(
                        target=self._pump, args=(source, sink, way), daemon=True
                    ).start()

    def _pump(self, source, sink, is_to_target):
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                self.heard[is_to_target] += data
                sink.sendall(self.change(is_to_target, data))
            sink.shutdown(socket.SHUT_WR)

    def close(self):
        self.listener.close()
        for each in self.sockets:
            each.close()


def connect(address):
    if address.startswith("basp+unix:"):
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(address.removeprefix("basp+unix:").removesuffix(":"))
        return sock
    host, port = address.removeprefix("basp://").split(":")
    return socket.create_connection((host, int(port)), 10)


@pytest.fixture
def make_relay():
    made = []

    def make(target):
        made.append(Relay(target))
        return made[-1]

    yield make
    for relay in made:
        relay.close()


class Impostor:
    """A stranger who has a member dial it, and speaks to another one in that member's name."""

    def __init__(self, target, *, dial, change=lambda frame: frame):
        """Pass the handshake on, up to the victim's proof, and drop the victim."""
        lure = socket.create_server(("127.0.0.1", 0))
        lure.settimeout(20)
        address = f"basp://127.0.0.1:{lure.getsockname()[1]}"
        dialing = threading.Thread(target=dial, args=(address,), daemon=True)
        dialing.start()
        near, _ = lure.accept()
        self.sock = connect(target)
        near.settimeout(20)
        self.sock.settimeout(20)
        greeting = self.sock.recv(65_536)
        near.sendall(change(greeting))
        self.proof = change(near.recv(65_536))
        near.close()
        lure.close()
        dialing.join(20)
        self.node, self.peer = self.proof[16:34], greeting[16:34]

    def speak(self, number):
        """Say all that makes a link of release 0.1, and ask an actor; return what was heard."""
        ends, heard = (self.node, self.peer), b""
        self.sock.sendall(self.proof)
        with contextlib.suppress(OSError):
            while data := self.sock.recv(65_536):
                if not heard:
                    self._establish(*ends)
                    ask = pack_frame(2, 7, *ends, 0, number, b"\x81\x68open up!")
                    self.sock.sendall(ask)
                heard += data
                if b"4711" in heard:
                    break
        self.sock.close()
        return heard

    def _establish(self, node, peer):
        """Say whatever makes a link, by the order of the two ids."""
        state = describe_node("v", is_tool=False)
        words = [(Operation.RESPONDER_SYN_ACK, state)]
        if node < peer:
            words = [(Operation.ORIGINATOR_SYN, b""), (Operation.ORIGINATOR_ACK, state)]
        for operation, payload in words:
            self.sock.sendall(pack_frame(operation, 0, node, peer, 0, 0, payload))
            if operation is Operation.ORIGINATOR_SYN:
                self.sock.recv(65_536)  # its answer


def dial_in_vain(node):
    def dial(address):
        with contextlib.suppress(errors.CallboardError):
            node.connect(address, 10.0)

    return dial


@pytest.fixture
def bank(make_node, tmp_path, request):
    node = make_node("w", secret=SECRET)
    where = getattr(request, "param", "127.0.0.1")
    if where == "unix":
        node.listen(f"unix:{tmp_path}/w")
        node.where = f"basp+unix:{tmp_path}/w:"
    else:
        node.listen()
        node.where = node.address
    node.safe = node.spawn(Safe)
    node.register("safe", node.safe)
    return node


def number_of(ref):
    return int(str(ref).split("/")[-1].split("@")[0])


@pytest.mark.parametrize("bank", ["127.0.0.1", "unix"], indirect=True)
@pytest.mark.parametrize("is_linked", [False, True])
def test_a_stranger_that_passes_a_members_proof_on_does_not_become_that_member(
    make_node, bank, is_linked
):
    member = make_node("v", secret=SECRET)
    if is_linked:  # a redial in its name, beside the live one
        member.connect(bank.where)
    impostor = Impostor(bank.where, dial=dial_in_vain(member))
    heard = impostor.speak(number_of(bank.safe))

    assert b"4711" not in heard
    if is_linked:
        assert member.remote_actor(bank.where + "/safe").ask("ours").result(10)
    assert bank.safe.proxy().read_opened().result(10) == ["ours"] * is_linked
    assert len(bank.links()) == is_linked


def strip(frame):
    """Make a handshake look as one of release 0.1, which knows no flag but the first."""
    return frame[:76] + bytes(flags & 1 for flags in frame[76:77]) + frame[77:]


@pytest.mark.parametrize("allows", [(False, True), (True, False), (True, True)])
def test_a_relay_that_hides_the_seal_gets_through_only_where_both_sides_allow_that(
    make_node, allows
):
    """The last one shows that the stranger of these tests knows what it does."""
    bank = make_node("w", secret=SECRET, allow_unsealed=allows[0])
    bank.listen()
    safe = bank.spawn(Safe)
    member = make_node("v", secret=SECRET, allow_unsealed=allows[1])
    impostor = Impostor(bank.address, dial=dial_in_vain(member), change=strip)
    heard = impostor.speak(number_of(safe))

    assert (b"4711" in heard) is all(allows)
    assert (safe.proxy().read_opened().result(10) == ["open up!"]) is all(allows)


def test_a_leaf_that_passes_on_a_stronger_proof_gets_no_more_rights(make_node):
    """The member proves its secret to a leaf that listens; the leaf relays it to the office."""
    permissions = {"member": Rights.member(), "leaf": Rights(names=["till"])}
    secrets = {"member": "strong", "leaf": "weak"}
    office = make_node("office", secrets=secrets, permissions=permissions)
    office.listen()
    safe = office.spawn(Safe)
    member = make_node("v", secrets=secrets, permissions=permissions)
    impostor = Impostor(office.address, dial=dial_in_vain(member))

    assert b"4711" not in impostor.speak(number_of(safe))
    assert office.links() == []


def test_a_node_whose_own_words_come_back_is_not_linked_with_itself(make_node, make_relay):
    node = make_node("v", secret=SECRET)
    node.listen()
    relay = make_relay(node.address)
    with pytest.raises(errors.LinkError, match="connected to itself"):
        node.connect(relay.address)


def test_a_session_that_was_recorded_is_of_no_use_later(make_node, make_relay, bank):
    member = make_node("v", secret=SECRET)
    relay = make_relay(bank.address)
    member.connect(relay.address)
    assert member.remote_actor(relay.address + "/safe").ask("once").result(10)
    recorded = relay.heard[True]
    member.close()
    eventually(lambda: not bank.links())

    with connect(bank.address) as sock:
        sock.settimeout(20)
        sock.sendall(recorded)
        with contextlib.suppress(OSError):
            while sock.recv(65_536):
                pass
    assert bank.links() == []
    assert bank.safe.ask("own").result(10)
    assert bank.stats().dead_letters == 0


def test_through_a_relay_that_changes_nothing_nodes_are_linked(make_node, make_relay, bank):
    """It can cut, delay and read; that is what the docs say of it."""
    member = make_node("v", secret=SECRET)
    relay = make_relay(bank.address)
    member.connect(relay.address)
    assert member.remote_actor(relay.address + "/safe").ask("mine").result(10)
    assert b"mine" in relay.heard[True]  # encryption is TLS
    (link,) = member.links()
    assert link.guard == "seal"


def test_a_changed_byte_ends_the_link_and_the_message_counts_as_lost(
    make_node, make_relay, bank, caplog
):
    caplog.set_level(logging.INFO, "callboard")
    member = make_node("v", secret=SECRET)
    relay = make_relay(bank.address)
    member.connect(relay.address)
    safe = member.remote_actor(relay.address + "/safe")
    assert safe.ask("before").result(10)
    ended = []
    with bank.subscribed(lambda event: isinstance(event, LinkDown) and ended.append(event)):
        relay.change = lambda way, data: data.replace(b"change", b"chance") if way else data
        with pytest.raises(errors.CallboardError):
            safe.ask("change me").result(30)
        eventually(lambda: ended)

    assert "seal" in ended[0].reason
    eventually(lambda: member.accounts()[bank.node_id].lost >= 1)
    relay.change = lambda _way, data: data
    eventually(lambda: bank.links())  # the member dials again, with other keys
    assert safe.ask("after").result(30)


def test_an_end_without_a_word_inside_the_seal_is_a_loss(make_node, make_relay, bank):
    member = make_node("v", secret=SECRET)
    relay = make_relay(bank.address)
    member.connect(relay.address)
    eventually(bank.links)
    ended = []
    with bank.subscribed(lambda event: isinstance(event, LinkDown) and ended.append(event)):
        drop = pack_frame(Operation.DROP_CONN, 0, member.node_id, bank.node_id, 0, 0, b"")
        relay.sockets[1].sendall(drop)
        eventually(lambda: ended)
    assert "seal" in ended[0].reason


@pytest.mark.parametrize("size", [700, 800, 65_000, 66_000, 5 << 20])
def test_messages_of_any_size_pass_both_ways(make_node, bank, size):
    member = make_node("v", secret=SECRET)
    message = bytes(range(256)) * (size // 256 + 1)
    safe = member.remote_actor(bank.address + "/safe")
    asks = [safe.ask(message[:size]) for _ in range(3)]
    for ask in asks:
        assert ask.result(60) == message[:size]
    (link,) = member.links()
    assert link.guard == "seal"
    assert link.bytes_waiting == 0


def test_a_flood_that_is_larger_than_the_socket_arrives_whole(make_node, bank):
    member = make_node("v", secret=SECRET, limits=Limits())
    safe = member.remote_actor(bank.address + "/safe")
    asks = [safe.ask(bytes(50_000 + number)) for number in range(400)]
    assert [len(ask.result(120)) for ask in asks] == list(range(50_000, 50_400))
    assert member.links()[0].bytes_waiting == 0


def test_a_message_for_another_node_is_sealed_anew_on_each_hop(make_node, make_relay):
    near, far = make_node("near", secret="one"), make_node("far", secret="two")
    middle = make_node("middle", secret="one")
    middle.listen()
    port = middle.listen(secret="two")
    first = make_relay(middle.address)
    second = make_relay(f"basp://127.0.0.1:{port}")
    far.register("safe", far.spawn(Safe))
    near.connect(first.address)
    far.connect(second.address)
    eventually(lambda: far.node_id in [node.node_id for node in near.nodes()])
    safe = near.find("safe").result(10)

    assert safe.ask("on its way").result(10)
    ways = [first.heard[True], second.heard[False]]
    assert all(b"on its way" in heard for heard in ways)
    places = [heard.index(b"on its way") for heard in ways]
    after = [heard[place : place + 40] for heard, place in zip(ways, places, strict=True)]
    assert after[0] != after[1]
    assert near.links()[0].guard == far.links()[0].guard == "seal"


@pytest.mark.parametrize("mutual", [False, True])
def test_between_two_certificates_nothing_is_sealed_and_else_it_is(make_node, papers, mutual):
    tls = papers.tls()
    server = make_node("server", secret=SECRET)
    port = server.listen(tls=tls if mutual else papers.tls(mutual=False))
    client = make_node("client", secret=SECRET, tls=tls)
    client.connect(f"basp://localhost:{port}")
    eventually(lambda: server.links())

    expected = "tls" if mutual else "seal"
    assert [link.guard for node in (server, client) for link in node.links()] == [expected] * 2


def test_links_without_a_secret_are_not_sealed_and_tell_releases(make_node):
    a, b = make_node("a"), make_node("b")
    a.listen()
    b.connect(a.address)
    eventually(lambda: a.links())
    for node in (a, b):
        (link,) = node.links()
        assert link.guard == "none"
        assert link.release.startswith("0.2")
