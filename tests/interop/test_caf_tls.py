"""TLS of real CAF nodes: certificates of both sides, or the cipher without certificates."""

import ssl

import pytest

from callboard import Node
from callboard.actors.errors import NodeUnreachable
from tests.interop.caf.real_node import real_nodes
from tests.interop.caf.service import WAIT, Service
from tests.proxies.papers import Papers

pytestmark = pytest.mark.slow


def options(papers):
    """Return the options of a CAF node with a certificate."""
    path = papers.issue("127.0.0.1", "caf")
    return (
        f"--openssl.certificate={path}",
        f"--openssl.key={path}",
        f"--openssl.cafile={papers.folder / 'authority.pem'}",
    )


def talk(node, real):
    """Talk in both directions."""
    ref = node.remote_actor(f"caf://127.0.0.1:{real.serve('tlsserve')}")
    assert ref.ask((1, 2)).result(WAIT) == 3

    with Node("other", tls=node._encryption._tls) as other:
        port = other.listen(wire="caf-0.17", publish=other.spawn(Service))
        assert real.do(f"tlsremote {port}") == "remote"
        assert real.do("add 1 2") == "sum 3"


def test_nodes_with_certificates_of_one_authority_talk(tmp_path):
    papers = Papers(tmp_path / "papers")
    with real_nodes(1, *options(papers)) as (real,), Node("ours", tls=papers.tls()) as node:
        talk(node, real)


def test_a_node_without_the_certificate_is_refused_on_both_sides(tmp_path):
    papers, others = Papers(tmp_path / "papers"), Papers(tmp_path / "others")
    with real_nodes(1, *options(papers)) as (real,):
        port = real.serve("tlsserve")
        for tls in (others.tls(), None):
            with Node("stranger", tls=tls) as stranger, pytest.raises(NodeUnreachable):
                stranger.remote_actor(f"caf://127.0.0.1:{port}", timeout=3)
            with Node("host", tls=tls) as host:
                opened = host.listen(wire="caf-0.17", publish=host.spawn(Service))
                assert real.do(f"tlsremote {opened}").startswith("error")


class Anonymous:
    """CAF's cipher without certificates, which encrypts and proves nothing."""

    def for_listening(self):
        return self._context(ssl.PROTOCOL_TLS_SERVER)

    def for_dialing(self):
        return self._context(ssl.PROTOCOL_TLS_CLIENT)

    def _context(self, protocol):
        context = ssl.SSLContext(protocol)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers("AECDH-AES256-SHA:@SECLEVEL=0")
        return context

    def files(self):
        return ()

    def lists(self):
        return ()


def test_nodes_without_certificates_talk_with_the_anonymous_cipher():
    with real_nodes() as (real,), Node("ours", tls=Anonymous()) as node:
        talk(node, real)
