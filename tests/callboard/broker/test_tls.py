"""TLS as Broker has it."""

import ssl
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from callboard.broker import EC, BrokerOptions, Configuration
from callboard.proxies.errors import TlsError
from tests.polling import eventually
from tests.proxies.papers import replace


def configured(papers, name, *, authority=True, passphrase="", authority_file=None):
    configuration = Configuration()
    certificate = papers.issue(name)
    if passphrase:
        key = serialization.load_pem_private_key(certificate.read_bytes(), None)
        locked = certificate.with_suffix(".key")
        locked.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.BestAvailableEncryption(passphrase.encode()),
            )
        )
        configuration.openssl_key = str(locked)
        configuration.openssl_passphrase = passphrase
    configuration.openssl_certificate = str(certificate)
    if authority:
        configuration.openssl_cafile = str(authority_file or papers.folder / "authority.pem")
    return configuration


def plain():
    options = BrokerOptions()
    options.disable_ssl = True
    return Configuration(options)


def test_by_default_links_are_encrypted_without_certificates(pair):
    here, there, port = pair
    assert there.peer("127.0.0.1", port, 0)

    (wire,) = there.node._broker.routes.wires.values()
    assert "AECDH" in wire._socket._ssl.cipher()[0]


def test_without_ssl_links_are_plain(make_endpoint):
    here, there = make_endpoint(plain()), make_endpoint(plain())
    subscriber = here.make_subscriber("/a")

    assert there.peer("127.0.0.1", here.listen("127.0.0.1", 0), 0)
    there.publish("/a", 1)

    assert subscriber.get(5.0) == ("/a", 1)


@pytest.mark.slow
@pytest.mark.parametrize("plain_dials", [True, False])
def test_an_endpoint_with_ssl_and_one_without_are_no_peers(make_endpoint, plain_dials):
    here, there = make_endpoint(), make_endpoint(plain())
    dialer, listener = (there, here) if plain_dials else (here, there)
    errors = dialer.make_status_subscriber()

    assert not dialer.peer("127.0.0.1", listener.listen("127.0.0.1", 0), 0)
    assert errors.get(5.0).code() == EC.PeerUnavailable


def test_with_an_authority_both_sides_show_certificates(make_endpoint, papers):
    here = make_endpoint(configured(papers, "here"))
    there = make_endpoint(configured(papers, "there", passphrase="open sesame"))

    assert there.peer("127.0.0.1", here.listen("127.0.0.1", 0), 0)


def test_a_certificate_of_another_authority_is_refused(make_endpoint, papers, tmp_path):
    other = type(papers)(tmp_path / "other", trustme.CA())
    here = make_endpoint(configured(papers, "here"))
    stranger = make_endpoint(configured(other, "stranger"))

    assert not stranger.peer("127.0.0.1", here.listen("127.0.0.1", 0), 0)


def test_without_certificate_nobody_gets_in_where_one_is_wanted(make_endpoint, papers):
    here, there = make_endpoint(configured(papers, "here")), make_endpoint()

    assert not there.peer("127.0.0.1", here.listen("127.0.0.1", 0), 0)


def test_certificates_let_the_empty_address_be_all_interfaces(make_endpoint, papers):
    endpoint = make_endpoint(configured(papers, "here"))
    port = endpoint.listen()

    assert endpoint.node.address == f"basp://0.0.0.0:{port}"


def test_an_empty_folder_of_authorities_trusts_nobody(papers, tmp_path, make_endpoint):
    # OpenSSL looks for names that are hashes there; an empty folder trusts nobody.
    configuration = configured(papers, "here", authority=False)
    configuration.openssl_capath = str(tmp_path)
    here, there = make_endpoint(configuration), make_endpoint(configured(papers, "there"))

    assert not there.peer("127.0.0.1", here.listen("127.0.0.1", 0), 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"openssl_key": "key.pem"}, "openssl_certificate is not"),
        ({"openssl_cafile": "ca.pem"}, "set openssl_certificate"),
        ({"openssl_certificate": "none.pem"}, "none.pem"),
    ],
)
def test_files_that_do_not_fit_are_named(make_endpoint, options, message):
    configuration = Configuration()
    for name, value in options.items():
        setattr(configuration, name, value)

    with pytest.raises(TlsError, match=message):
        make_endpoint(configuration)


def test_a_key_with_a_password_needs_the_passphrase(make_endpoint, papers):
    configuration = configured(papers, "locked", passphrase="open sesame")
    configuration.openssl_passphrase = ""
    with pytest.raises(TlsError, match="set openssl_passphrase"):
        make_endpoint(configuration)

    configuration.openssl_passphrase = "wrong"
    with pytest.raises(TlsError, match="passphrase"):
        make_endpoint(configuration)


def test_the_peer_whose_certificate_is_revoked_is_left(make_endpoint, papers):
    ours, theirs = configured(papers, "a"), configured(papers, "b")
    ours.openssl_crlfile = str(papers.revoke())
    here, there = make_endpoint(ours), make_endpoint(theirs)
    assert there.peer("127.0.0.1", here.listen("127.0.0.1", 0), 0)
    try:
        papers.revoke(Path(theirs.openssl_certificate))

        eventually(lambda: not here.node.links())
        again = make_endpoint(configured(papers, "c"))
        assert again.peer("127.0.0.1", here.listen("127.0.0.1", 0), 0)
    finally:
        (papers.folder / "revoked.pem").unlink()


def test_a_replaced_certificate_of_an_endpoint_is_shown(make_endpoint, papers):
    ours = configured(papers, "a")
    port = make_endpoint(ours).listen("127.0.0.1", 0)
    fresh = papers.authority.issue_cert("a").private_key_and_cert_chain_pem.bytes()

    replace(Path(ours.openssl_certificate), fresh)

    shown = ssl.get_server_certificate(("127.0.0.1", port), timeout=5)
    assert "".join(shown.split()).encode() in b"".join(fresh.split())


def test_a_list_of_an_endpoint_that_is_missing_is_named(make_endpoint, papers):
    ours = configured(papers, "a")
    ours.openssl_crlfile = "gone.pem"
    with pytest.raises(TlsError, match=r"gone\.pem"):
        make_endpoint(ours)
