"""A dashboard uses the current certificate of its folder."""

import ssl

import pytest
import trustme

from callboard import Node
from tests.polling import eventually

pytest.importorskip("uvicorn")

from callboard.dashboard.errors import DashboardError
from callboard.dashboard.server import DashboardServer


def put(papers, folder):
    issued = papers.issue_cert("127.0.0.1")
    for name, pem in (
        ("key", issued.private_key_pem),
        ("certificate", issued.cert_chain_pems[0]),
    ):
        pem.write_to_path(folder / f"{name}.new")
        (folder / f"{name}.new").replace(folder / f"{name}.pem")
    return issued.cert_chain_pems[0].bytes().decode().strip()


def test_a_renewed_certificate_is_used_and_an_invalid_one_is_not(tmp_path):
    papers = trustme.CA()
    first = put(papers, tmp_path)
    with Node() as node, DashboardServer(node, tls=tmp_path) as server:

        def shown():
            return ssl.get_server_certificate(("127.0.0.1", server.port), timeout=120).strip()

        assert shown() == first
        (tmp_path / "certificate.pem").write_text("junk")
        assert shown() == first
        second = put(papers, tmp_path)
        assert eventually(lambda: shown() == second)


def test_a_folder_without_certificates_is_refused(tmp_path):
    with Node() as node, pytest.raises(DashboardError, match="needs certificate.pem"):
        DashboardServer(node, tls=tmp_path)
