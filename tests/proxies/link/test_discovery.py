"""Nodes find each other by names in DNS, SRV records and files, which are looked up again."""

import logging
import socket
import threading

import pytest

from callboard import Node, errors
from callboard.events import AddressesChanged, LookUpFailed
from callboard.proxies.address import NodeSource, parse_seed
from callboard.proxies.environment import NodeEnvironment, Runner, new_node_id
from callboard.proxies.link import discovery
from callboard.proxies.link.network import MachineNetwork
from tests.polling import eventually


class Names(MachineNetwork):
    """A network whose names are said by the test."""

    def __init__(self) -> None:
        self.known: dict[str, list[str] | OSError] = {}
        self.lookups = 0

    def resolve(self, host, port, *, numeric):
        if not host.endswith(".test"):
            return super().resolve(host, port, numeric=numeric)
        if numeric:
            return None
        self.lookups += 1
        found = self.known.get(host, OSError(-2, "Name or service not known"))
        if isinstance(found, OSError):
            raise found
        return [
            info
            for each in found
            for info in super(Names, self).resolve(each, port, numeric=True)
        ]


@pytest.fixture
def names(monkeypatch):
    monkeypatch.setattr(discovery, "INTERVAL", 0.02)
    monkeypatch.setattr(discovery, "FILE_INTERVAL", 0.02)
    return Names()


def make(names, **options):
    around = NodeEnvironment(Runner, names, new_node_id)
    return Node(surroundings=around, **options)


def listen_at_one_port(*nodes):
    """Let nodes listen at the same port of 127.0.0.2, 127.0.0.3 …; returns the port."""
    while True:
        port = 0
        try:
            for last, node in enumerate(nodes, 2):
                port = node.listen(f"127.0.0.{last}", port)
        except OSError:
            pytest.skip("the port is taken at another address of this machine")
        else:
            return port


def ids(node):
    return {each.node_id for each in node.nodes()}


def test_sources_are_read_from_their_text():
    assert parse_seed("dns://a.b.svc:4222") == NodeSource(
        "dns://a.b.svc:4222", "dns", "a.b.svc", 4222
    )
    assert parse_seed("srv://_x._tcp.a.b") == NodeSource(
        "srv://_x._tcp.a.b", "srv", "_x._tcp.a.b"
    )
    assert parse_seed("file:///etc/peers") == NodeSource(
        "file:///etc/peers", "file", "/etc/peers"
    )
    assert parse_seed("file:peers.txt").where == "peers.txt"
    assert parse_seed("basp://h:1") == ("h", 1)
    for text in ("dns://a", "dns://:1", "dns://a:0", "srv://", "file:", "srv://a:1", "dns:a:1"):
        with pytest.raises(errors.InvalidAddress):
            parse_seed(text)


def test_all_addresses_of_a_name_are_dialed_and_those_that_come_later(names):
    with Node("a") as a, Node("b") as b, make(names, name="c") as c:
        port = listen_at_one_port(a, b, c)
        names.known["peers.test"] = ["127.0.0.2", "127.0.0.4"]
        events: list[object] = []
        with c.subscribed(events.append):
            assert c.connect(f"dns://peers.test:{port}") == a.node_id
            names.known["peers.test"] = ["127.0.0.2", "127.0.0.3", "127.0.0.4"]
            eventually(lambda: ids(c) == {a.node_id, b.node_id})
            eventually(lambda: sum(isinstance(each, AddressesChanged) for each in events) > 1)
        changes = [each for each in events if isinstance(each, AddressesChanged)]
        assert [each.added for each in changes] == [
            (f"basp://127.0.0.2:{port}",),
            (f"basp://127.0.0.3:{port}",),
        ]  # its own address is not among them


def test_addresses_that_are_gone_are_dialed_no_more_and_their_links_stay(names):
    with Node("a") as a, make(names, name="b") as b:
        port = listen_at_one_port(a)
        names.known["peers.test"] = ["127.0.0.2"]
        assert b.connect(f"dns://peers.test:{port}") == a.node_id
        assert len(b.overlay.dials()) == 1
        names.known["peers.test"] = []
        eventually(lambda: not b.overlay.dials())
        assert ids(b) == {a.node_id}
        a.close()
        eventually(lambda: not b.nodes())
        assert not b.overlay.dials()
        assert b.is_alone


def test_while_a_look_up_fails_what_it_said_last_holds_and_that_is_told_once(names, caplog):
    events: list[object] = []
    with Node("a") as a, make(names, name="b") as b, b.subscribed(events.append):
        port = listen_at_one_port(a)
        names.known["peers.test"] = ["127.0.0.2"]
        b.connect(f"dns://peers.test:{port}")
        names.known.clear()
        before = names.lookups
        eventually(lambda: names.lookups > before + 3)
        assert len(b.overlay.dials()) == 1
        assert not b.is_alone
    assert len([each for each in events if isinstance(each, LookUpFailed)]) == 1
    assert len([line for line in caplog.messages if "Name or service not known" in line]) == 1


def test_join_finds_nodes_that_start_later(names):
    names.known["peers.test"] = ["127.0.0.2"]
    with Node("a") as probe:
        port = listen_at_one_port(probe)
    with make(names, name="b", join=[f"dns://peers.test:{port}"]) as b, Node("a") as a:
        a.listen("127.0.0.2", port)
        eventually(lambda: ids(b) == {a.node_id})


@pytest.mark.parametrize(
    ("known", "why"),
    [
        (None, "Name or service not known"),
        ([], "it names only this node"),
        (["127.0.0.9"], "no node answers at basp://127.0.0.9:1 (Connection refused)"),
    ],
)
def test_connect_says_why_a_name_leads_nowhere(names, known, why):
    if known is not None:
        names.known["peers.test"] = known
    with make(names) as node:
        with pytest.raises(errors.NodeUnreachable) as caught:
            node.connect("dns://peers.test:1", timeout=0.5)
        assert why in str(caught.value)
        eventually(lambda: not node.overlay.dials())


def test_a_node_at_an_address_that_is_not_seen_to_be_its_own_dials_it_once(names, monkeypatch):
    with make(names) as node:
        port = node.listen("127.0.0.2", 0)
        monkeypatch.setattr(node._discovery, "_is_own", lambda _: False)
        names.known["peers.test"] = ["127.0.0.2"]
        with pytest.raises(errors.NodeUnreachable, match="it names only this node"):
            node.connect(f"dns://peers.test:{port}", timeout=1.0)


def test_a_wildcard_listener_knows_its_own_addresses(names):
    with make(names) as node:
        port = node.listen("0.0.0.0", 0, insecure=True)
        assert node._ports.is_own(("127.0.0.7", port))
        assert not node._ports.is_own(("192.0.2.1", port))
        assert not node._ports.is_own(("127.0.0.7", port + 1))


def test_a_file_of_addresses_is_read_again_when_it_changes(names, tmp_path):
    peers = tmp_path / "peers"
    with Node("a") as a, Node("b") as b, make(names, name="c", join=[f"file:{peers}"]) as c:
        a.listen()
        b.listen()
        assert not c.nodes()
        peers.write_text(f"# the first\n{a.address}   # at home\n\n")
        eventually(lambda: ids(c) == {a.node_id})
        peers.write_text(f"{a.address}\n{b.address.removeprefix('basp://')}\n")
        eventually(lambda: ids(c) == {a.node_id, b.node_id})
        peers.write_text(f"{b.address}\n")
        eventually(lambda: len(c.overlay.dials()) == 1)


def test_a_mistake_in_a_file_names_the_line_and_changes_nothing(names, tmp_path, caplog):
    peers = tmp_path / "peers"
    with Node("a") as a, make(names, name="c") as c:
        a.listen()
        peers.write_text(a.address)
        c.connect(f"file:{peers}")
        peers.write_text(f"{a.address}\nnowhere\n")
        eventually(lambda: "not an address" in caplog.text)
        assert len(c.overlay.dials()) == 1
    assert f"{peers}:2: 'nowhere'" in caplog.text


def test_one_address_of_several_sources_is_dialed_while_one_has_it(names, tmp_path):
    with Node("a") as a, make(names, name="c") as c:
        a.listen()
        files = [tmp_path / "one", tmp_path / "two"]
        for file in files:
            file.write_text(a.address)
            c.connect(f"file:{file}")
        files[0].write_text("")
        counts = c._discovery._use_counts
        eventually(lambda: len(counts) == counts.total() == 1)
        assert len(c.overlay.dials()) == 1
        files[1].write_text("")
        eventually(lambda: not c.overlay.dials())


def test_what_a_user_dials_stays_when_a_source_loses_it(names, tmp_path):
    with Node("a") as a, make(names, name="c") as c:
        a.listen()
        c.connect(a.address)
        file = tmp_path / "peers"
        file.write_text(a.address)
        c.connect(f"file:{file}")
        file.write_text("")
        eventually(lambda: c.is_alone)
        assert len(c.overlay.dials()) == 1


class NameServer:
    """A name server on this machine that answers with SRV records."""

    def __init__(self) -> None:
        self.records: list[tuple[int, int, int, str]] = []
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.bind(("127.0.0.1", 0))
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        from dns import flags, message, rdatatype, rrset

        while True:
            try:
                asked, where = self.sock.recvfrom(4096)
            except OSError:
                return
            question = message.from_wire(asked)
            answer = message.make_response(question)
            answer.flags |= flags.RA
            name = question.question[0].name
            texts = [" ".join(map(str, record)) for record in self.records]
            if texts and question.question[0].rdtype == rdatatype.SRV:
                answer.answer.append(rrset.from_text(name, 1, "IN", "SRV", *texts))
            self.sock.sendto(answer.to_wire(), where)


@pytest.fixture
def server(monkeypatch):
    resolver = pytest.importorskip("dns.resolver")
    made = NameServer()
    own = resolver.Resolver(configure=False)
    own.nameservers, own.port = ["127.0.0.1"], made.sock.getsockname()[1]
    monkeypatch.setattr(resolver, "default_resolver", own)
    yield made
    made.sock.close()


def test_srv_records_say_targets_and_ports(names, server, caplog):
    with Node("a") as a, Node("b") as b, make(names, name="c") as c:
        ports = [a.listen(), b.listen()]
        server.records = [(10, 1, ports[0], "localhost.")]
        assert c.connect("srv://_callboard._tcp.shop.test", timeout=30) == a.node_id
        server.records.append((20, 1, ports[1], "localhost."))
        eventually(lambda: ids(c) == {a.node_id, b.node_id})
        with caplog.at_level(logging.WARNING):
            server.records = []
            eventually(lambda: "does not contain an answer" in caplog.text)
        assert len(c.overlay.dials()) == 2


def test_srv_without_dnspython_says_what_to_install(names, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "dns", None)
    with make(names) as node, pytest.raises(errors.NodeUnreachable, match="callboard\\[dns\\]"):
        node.connect("srv://_callboard._tcp.shop.test", timeout=0.5)
