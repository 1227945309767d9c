"""Shared rules of commands that open a port."""

import http.client

import pytest

from callboard.cli.own_node import open_metrics
from callboard.cli.pipeline import StreamOptions, _serve_metrics
from callboard.cli.work.zeek_logger import LoggerOptions, _metrics
from callboard.pages import text_page
from callboard.pipeline.progress import StatusFile


def status_of(server_url, host):
    place = server_url.removeprefix("http://")
    connection = http.client.HTTPConnection(place, timeout=20)
    try:
        connection.putrequest("GET", "/metrics", skip_host=True)
        connection.putheader("Host", host)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("hosts", "expected"), [(None, 403), (["shop.example"], 200), (["other.example"], 403)]
)
def test_metrics_answer_under_the_given_names(hosts, expected):
    server = open_metrics("127.0.0.1:0", hosts, lambda: text_page("figures"))
    with server:
        status, text = status_of(server.url, "shop.example")
        assert status == expected
        assert ("--metrics-host" in text) is (expected == 403)
        assert status_of(server.url, "localhost") == (200, "figures\n")


def test_the_pipeline_and_zeeks_logger_pass_their_names_on(tmp_path, capsys):
    options = StreamOptions(
        log="log", to=tmp_path, metrics="127.0.0.1:0", metrics_host=["shop.example"]
    )
    with _serve_metrics(options, StatusFile(tmp_path, "rates", "log")) as server:
        assert status_of(server.url, "evil.example")[0] == 403
        assert status_of(server.url, "shop.example")[0] == 200

    capsys.readouterr()
    with _metrics(LoggerOptions(metrics="127.0.0.1:0", metrics_host=["shop.example"])):
        url = capsys.readouterr().err.split()[-1].removesuffix("/metrics")
        assert status_of(url, "evil.example")[0] == 403
        assert status_of(url, "shop.example")[0] == 200
