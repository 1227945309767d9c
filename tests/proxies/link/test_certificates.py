"""Certificates that are replaced while nodes run, and peers whose certificates are revoked."""

import base64
import os
import ssl
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from callboard import Tls
from callboard.actors.errors import NodeUnreachable
from callboard.proxies.errors import TlsError
from callboard.proxies.events import CertificatesRefused, CertificatesReplaced
from callboard.tls.certificates import Certificates
from callboard.tls.revocation import Revocations, expiry_of, read_lists
from tests.descriptors import open_files
from tests.proxies.cast import Echo, eventually
from tests.proxies.papers import Papers, replace, write_list


@pytest.fixture
def papers(tmp_path) -> Papers:
    return Papers(tmp_path / "papers")


@pytest.fixture
def live(papers, tmp_path) -> Tls:
    """Files of one node that tests replace: certificate and key, apart, and an empty list."""
    return deploy(papers, tmp_path / "live", papers.revoke())


def deploy(papers: Papers, folder, revoked=None) -> Tls:
    folder.mkdir(exist_ok=True)
    renew(papers, folder)
    replace(folder / "authority.pem", papers.authority.cert_pem.bytes())
    names = ("certificate.pem", "key.pem", "authority.pem")
    return Tls(*(folder / name for name in names), revoked=revoked)


def renew(papers: Papers, folder, *, parts=("certificate", "key"), name="localhost") -> None:
    issued = papers.authority.issue_cert(name, "127.0.0.1")
    pems = {"certificate": issued.cert_chain_pems[0], "key": issued.private_key_pem}
    for part in parts:
        replace(folder / f"{part}.pem", pems[part].bytes())


def serial_at(port: int) -> int:
    """Return the serial number of the certificate that a port shows."""
    shown = ssl.get_server_certificate(("127.0.0.1", port), timeout=5)
    return x509.load_pem_x509_certificate(shown.encode()).serial_number


def serial_in(path) -> int:
    return x509.load_pem_x509_certificate(path.read_bytes()).serial_number


@pytest.fixture
def told():
    """Collect the events of a node that are of a kind."""
    with ExitStack() as stack:

        def collect(node, kind) -> list:
            found: list = []
            seen = lambda event: isinstance(event, kind) and found.append(event)  # noqa: E731
            stack.enter_context(node.subscribed(seen))
            return found

        yield collect


# --- replaced ---


def test_a_replaced_certificate_is_shown_to_the_next_who_comes(make_node, papers, live, told):
    node = make_node("a", tls=live)
    events, port = told(node, CertificatesReplaced), node.listen()
    peer = make_node("b", tls=papers.tls())
    peer.connect(node.address)
    eventually(lambda: len(node.links()) == 1)

    renew(papers, live.certificate.parent)

    eventually(lambda: serial_at(port) == serial_in(live.certificate))
    eventually(lambda: len(events) == 1)
    assert str(live.certificate) in events[0].files
    eventually(lambda: len(node.links()) == 1)  # it stays, or a stalled machine made it anew


def test_an_authority_that_is_replaced_decides_who_comes_next(
    make_node, papers, strangers, live
):
    node = make_node("a", tls=live)
    node.listen()
    both = Tls(strangers.issue("127.0.0.1"), authority=papers.folder / "authority.pem")
    peer = make_node("b", tls=both)
    with pytest.raises(NodeUnreachable, match="does not accept this node's certificate"):
        peer.connect(node.address)

    trusted = papers.authority.cert_pem.bytes() + strangers.authority.cert_pem.bytes()
    replace(live.authority, trusted)
    write_list(strangers.authority, lists := live.authority.with_name("other.pem"))
    replace(live.revoked, live.revoked.read_bytes() + lists.read_bytes())

    assert peer.connect(node.address) == node.node_id


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("certificate", None, "cannot be read"),
        ("certificate", b"junk", "belong together"),
        ("key", b"", "belong together"),
        ("authority", b"junk", "no certificates in PEM format"),
        ("revoked", b"junk", "no revocation lists in PEM format"),
        ("revoked", None, "revocation list cannot be read"),
        ("revoked", "authority", "may not hold certificates"),
        ("revoked", "pipe", "not a regular file"),
        ("key", "pipe", "not a regular file"),
    ],
)
def test_a_file_that_is_of_no_use_leaves_the_last_good_ones_in_force(
    make_node, papers, live, told, name, content, why, caplog
):
    node = make_node("a", tls=live)
    refused, replaced = told(node, CertificatesRefused), told(node, CertificatesReplaced)
    port = node.listen()
    serial, path = serial_in(live.certificate), getattr(live, name)
    good = path.read_bytes()

    if content is None:
        path.unlink()
    elif content == "pipe":  # at once: no look finds the place empty
        os.mkfifo(path.with_name("pipe"))
        path.with_name("pipe").replace(path)
    else:
        beside = papers.authority.cert_pem.bytes() + good
        replace(path, beside if content == "authority" else content)
    make_node("b", tls=papers.tls()).connect(node.address)
    eventually(lambda: refused)

    assert why in refused[0].reason
    assert str(path) in refused[0].reason
    assert "stays in force" in caplog.text
    assert serial_at(port) == serial
    assert len(refused) == 1
    replace(path, good)
    renew(papers, live.certificate.parent)
    eventually(lambda: serial_at(port) == serial_in(live.certificate))
    eventually(lambda: replaced)


def test_half_a_pair_waits_for_its_other_half(make_node, papers, live, told):
    node = make_node("a", tls=live)
    refused, port = told(node, CertificatesRefused), node.listen()
    serial, folder = serial_in(live.certificate), live.certificate.parent
    issued = papers.authority.issue_cert("127.0.0.1", "localhost")

    replace(live.certificate, issued.cert_chain_pems[0].bytes())
    eventually(lambda: refused)
    assert "belong together" in refused[0].reason
    assert serial_at(port) == serial
    replace(folder / "key.pem", issued.private_key_pem.bytes())

    eventually(lambda: serial_at(port) == serial_in(live.certificate) != serial)


def test_a_change_within_one_tick_of_the_file_system_is_seen(papers, live, monkeypatch):
    certificates = Certificates(live)
    context, stamp = certificates.listening(), live.key.stat()
    monkeypatch.setattr(
        "callboard.tls.certificates._stamp",
        lambda tls: [(0, 1.0, stamp.st_ctime)],  # as if nothing had changed
    )
    assert certificates.listening() is not context


def test_files_that_rest_are_not_read_again(papers, live, monkeypatch):
    monkeypatch.setattr("callboard.tls.certificates.SETTLED", 0.0)
    certificates = Certificates(live)

    assert certificates.listening() is certificates.listening()


def test_links_that_lead_to_the_files_may_be_swapped(make_node, papers, tmp_path):
    """Kubernetes and certbot replace a link and never the files."""
    for number in (1, 2):
        deploy(papers, tmp_path / f"version-{number}")
    (tmp_path / "current").symlink_to("version-1")
    names = ("certificate.pem", "key.pem", "authority.pem")
    node = make_node(tls=Tls(*(tmp_path / "current" / name for name in names)))
    port = node.listen()
    first = serial_at(port)

    (tmp_path / "next").symlink_to("version-2")
    (tmp_path / "next").rename(tmp_path / "current")

    eventually(lambda: serial_at(port) != first)


# --- revoked ---


def test_the_link_of_a_revoked_peer_ends_and_does_not_come_back(make_node, papers, live, told):
    stolen, good = papers.issue("stolen"), papers.issue("127.0.0.1")
    authority = papers.folder / "authority.pem"
    node = make_node("a", tls=live)
    node.register("echo", node.spawn(Echo))
    node.listen()
    thief = make_node("thief", tls=Tls(stolen, authority=authority))
    friend = make_node("friend", tls=Tls(good, authority=authority))
    for peer in (thief, friend):
        peer.connect(node.address)

    papers.revoke(stolen)

    eventually(lambda: [link.peer for link in node.links()] == [friend.node_id])
    with pytest.raises(NodeUnreachable, match="certificate was revoked"):
        make_node("again", tls=Tls(stolen, authority=authority)).connect(node.address)
    assert friend.remote_actor(node.address + "/echo").ask("hi").result(5) == "hi"
    assert not thief.links()


def test_a_dialed_node_whose_certificate_is_revoked_is_left(make_node, papers, live, told):
    stolen = papers.issue("127.0.0.1", "localhost")
    node = make_node("a", tls=Tls(stolen, authority=papers.folder / "authority.pem"))
    node.listen()
    ours = make_node("b", tls=live)
    ours.connect(node.address)

    papers.revoke(stolen)

    eventually(lambda: not ours.links())
    with pytest.raises(NodeUnreachable, match="its certificate was revoked"):
        ours.connect(node.address)


def test_an_authority_between_that_is_revoked_takes_its_certificates_with_it(
    make_node, papers, tmp_path
):
    between = papers.authority.create_child_ca()
    issued = between.issue_cert("client")
    path = tmp_path / "client.pem"
    issued.private_key_and_cert_chain_pem.write_to_path(path)
    authority = papers.folder / "authority.pem"
    lists = (papers.revoke(), write_list(between, tmp_path / "between.pem"))
    ours = papers.issue("127.0.0.1")
    node = make_node("a", tls=Tls(ours, authority=authority, revoked=lists))
    node.listen()
    peer = make_node("b", tls=Tls(path, authority=authority))
    peer.connect(node.address)
    between_file = tmp_path / "between-certificate.pem"
    between.cert_pem.write_to_path(between_file)

    papers.revoke(between_file)

    eventually(lambda: not node.links())


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_revoked_client_does_not_resume_its_session(papers, live, version):
    stolen = papers.issue("stolen")
    certificates = Certificates(live)
    client = Tls(stolen, authority=papers.folder / "authority.pem").for_dialing()
    client.maximum_version = version
    server = certificates.listening()
    session = shaken(server, client).session
    assert not shaken(server, client, session).session_reused

    papers.revoke(stolen)

    with pytest.raises(ssl.SSLError, match="(?i)revoked"):
        shaken(certificates.listening(), client, session)


def shaken(server: ssl.SSLContext, client: ssl.SSLContext, session=None) -> ssl.SSLObject:
    """Return the client's side of a handshake that succeeded."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = server.wrap_bio(up, down, server_side=True)
    theirs = client.wrap_bio(down, up, server_hostname="localhost", session=session)
    waits = True
    while waits:
        waits = False
        for side in (theirs, ours):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                waits = True
    return theirs


def test_a_list_that_has_run_out_lets_nobody_in_and_is_told(make_node, papers, live, caplog):
    node = make_node("a", tls=live)
    node.listen()
    papers.revoke(days=-1)
    late = make_node("late", tls=live)
    late.listen()
    peer = make_node("b", tls=papers.tls())

    with pytest.raises(NodeUnreachable, match="or the revocation list there"):
        peer.connect(late.address)
    eventually(lambda: "out of date since" in caplog.text)
    assert peer.connect(node.address) == node.node_id  # it keeps the list that still holds
    papers.revoke()
    assert peer.connect(late.address) == late.node_id


def test_an_authority_without_a_list_lets_nobody_in(make_node, papers, strangers, tmp_path):
    foreign = write_list(strangers.authority, tmp_path / "foreign.pem")
    authority = papers.folder / "authority.pem"
    ours = Tls(papers.issue("127.0.0.1"), authority=authority, revoked=foreign)
    node, other = make_node("a", tls=ours), make_node("b", tls=papers.tls())
    other.listen()

    with pytest.raises(NodeUnreachable, match="has no list in"):
        node.connect(other.address)


def test_lists_that_are_missing_or_wrong_are_named_at_the_call(make_node, papers, tmp_path):
    good, authority = papers.issue("127.0.0.1"), papers.folder / "authority.pem"
    (tmp_path / "junk.pem").write_text("no list")

    with pytest.raises(TlsError, match=r"revocation list cannot be read.*gone\.pem"):
        make_node(tls=Tls(good, authority=authority, revoked=tmp_path / "gone.pem"))
    with pytest.raises(TlsError, match="no revocation lists in PEM format"):
        make_node(tls=Tls(good, authority=authority, revoked=tmp_path / "junk.pem"))
    with pytest.raises(TlsError, match="may not hold certificates"):
        make_node(tls=Tls(good, authority=authority, revoked=[papers.revoke(), authority]))


@pytest.mark.parametrize("size", range(0, 400, 7))
def test_a_list_cut_short_is_an_error_of_its_own(papers, size):
    whole = papers.revoke(papers.issue("x")).read_bytes()
    lines = whole.splitlines()
    data = b"".join(lines[1:-1])[: size // 4 * 4]
    text = b"\n".join([lines[0], data, lines[-1]])

    with suppress(ValueError):
        assert isinstance(read_lists(text), Revocations)


def test_each_list_of_a_file_has_its_authority_and_the_first_expiry_counts(papers, strangers):
    gone, stranger = papers.issue("gone"), strangers.issue("stranger")
    ours = papers.revoke(gone, days=5.0).read_bytes()
    theirs = strangers.revoke(stranger, days=2.0).read_bytes()

    lists = read_lists(ours + b"a comment\n" + theirs)

    chains = [[id_in(path)] for path in (gone, stranger, papers.issue("fine"))]
    assert [lists.has_any_of(chain) for chain in chains] == [True, True, False]
    assert lists.expires == read_lists(theirs).expires < read_lists(ours).expires
    (_, serial), (issuer, _) = chains[0][0], chains[1][0]
    assert not lists.has_any_of([(issuer, serial)])  # another authority's number


def id_in(path):
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    return certificate.issuer.public_bytes(), certificate.serial_number


def test_the_parser_is_loaded_with_the_first_list():
    """It takes a tenth of the time in which a node starts, and most nodes have no lists."""
    program = "import sys, callboard; callboard.Node('x').close()"
    looks = f"{program}; print('cryptography' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", looks], check=True, capture_output=True)

    assert output.stdout == b"False\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("none", "contains no certificate"),
        ("-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----", "is malformed"),
        ("-----BEGIN CERTIFICATE-----\nM\n-----END CERTIFICATE-----", "is malformed"),
    ],
)
def test_the_expiry_of_what_is_no_certificate_is_an_error(text, message):
    with pytest.raises(ValueError, match=message):
        expiry_of(text)


def test_the_expiry_is_that_of_the_first_certificate(papers):
    text = papers.issue("x").read_text()
    certificate = x509.load_pem_x509_certificate(text.encode())

    assert expiry_of("a comment\n" + text) == certificate.not_valid_after_utc.timestamp()


@pytest.mark.parametrize("flaw", ["signature", "authority", "time"])
def test_lists_by_which_nobody_could_be_checked_are_refused(
    make_node, papers, strangers, live, told, flaw
):
    node = make_node("a", tls=live)
    node.listen()
    refused = told(node, CertificatesRefused)
    lists = live.revoked
    if flaw == "signature":
        whole = x509.load_pem_x509_crl(lists.read_bytes()).public_bytes(Encoding.DER)
        broken = whole[:-1] + bytes([whole[-1] ^ 1])
        body = base64.encodebytes(broken)
        replace(lists, b"-----BEGIN X509 CRL-----\n" + body + b"-----END X509 CRL-----\n")
    elif flaw == "authority":
        write_list(strangers.authority, lists)
    else:
        papers.revoke(days=-1)

    eventually(lambda: refused)

    assert "stays in force" in refused[0].reason
    assert make_node("b", tls=papers.tls()).connect(node.address) == node.node_id


def test_a_node_whose_own_certificate_is_revoked_still_revokes_others(make_node, papers, live):
    stolen = papers.issue("stolen")
    node = make_node("a", tls=live)
    node.listen()
    make_node("b", tls=Tls(stolen, authority=papers.folder / "authority.pem")).connect(
        node.address
    )

    papers.revoke(stolen, live.certificate)

    eventually(lambda: not node.links())


def test_who_hears_of_new_certificates_may_open_a_port(make_node, papers, live):
    node = make_node("a", tls=live)
    ports = []
    with node.subscribed(
        lambda event: isinstance(event, CertificatesReplaced) and ports.append(node.listen())
    ):
        renew(papers, live.certificate.parent)
        eventually(lambda: ports)


def test_a_folder_in_the_place_of_a_certificate_keeps_no_descriptor(papers, tmp_path):
    folder = tmp_path.stat()
    for _ in range(5):
        with pytest.raises(TlsError, match="cannot be read"):
            Tls(tmp_path, authority=papers.folder / "authority.pem").for_dialing()
    assert (folder.st_dev, folder.st_ino) not in open_files()


def test_large_lists_are_read_beside_the_links(papers, live, monkeypatch):
    monkeypatch.setattr("callboard.tls.certificates.LARGE", 0)
    gate, readers = threading.Event(), []
    certificates = Certificates(live)
    old = certificates.listening()

    def slowly(text: bytes) -> Revocations:
        readers.append(threading.current_thread())
        assert gate.wait(20)
        return read_lists(text)

    monkeypatch.setattr("callboard.tls.certificates.read_lists", slowly)
    papers.revoke(papers.issue("x"))
    certificates.check()
    eventually(lambda: readers)

    assert certificates.listening() is old
    assert certificates.dialing()  # a direction that comes meanwhile stays
    certificates.check()
    assert len(readers) == 1
    gate.set()
    eventually(lambda: certificates.listening() is not old)
    assert threading.main_thread() not in readers
    eventually(lambda: not any(reader.is_alive() for reader in readers))
