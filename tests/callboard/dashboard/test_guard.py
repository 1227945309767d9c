"""The checklist of dashboards: Host, Origin and token, on every method."""

import asyncio
import json

import pytest

from callboard.dashboard.guard import Guard, GuardedApp

OWN = "127.0.0.1:8080"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PURGE")
GUARD = Guard(token="secret-token", hosts=frozenset({"shop.example"}), cookie="callboard-8080")
COOKIE = {"cookie": "callboard-8080=secret-token"}


def status(headers=(), *, method="GET", path="/api/v1/nodes", query="", guard=GUARD):
    given = {"host": OWN, **dict(headers)}
    return guard.judge(method, path, query, given).status


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (COOKIE, 200),
        ({"authorization": "Bearer secret-token"}, 200),
        ({"cookie": "a=b; callboard-8080=secret-token; c=d"}, 200),
        ({"cookie": 'a[b]=1; c={"d": 1}; callboard-8080=secret-token'}, 200),
        ({"cookie": "callboard-8080=tossed; callboard-8080=secret-token"}, 200),
        ({"cookie": "callboard-8080=secret-token; callboard-8080=tossed"}, 200),
        ({**COOKIE, "origin": f"http://{OWN}"}, 200),
        ({**COOKIE, "host": "localhost:8080"}, 200),
        ({**COOKIE, "host": "[::1]:8080"}, 200),
        ({**COOKIE, "host": "shop.example"}, 200),
        ({}, 401),
        ({"cookie": "callboard-8080=wrong"}, 401),
        ({"cookie": "callboard-8080; xcallboard-8080=secret-token; =secret-token"}, 401),
        ({"cookie": "callboard-8081=secret-token"}, 401),
        ({"authorization": "Basic secret-token"}, 401),
        ({"authorization": "Bearer "}, 401),
        ({**COOKIE, "host": "evil.example"}, 403),
        ({**COOKIE, "host": "evil.example:8080"}, 403),
        ({**COOKIE, "host": "127.0.0.1.evil.example"}, 403),
        ({**COOKIE, "host": "evil@127.0.0.1"}, 403),
        ({**COOKIE, "host": "192.0.2.7:8080"}, 403),
        ({**COOKIE, "host": "["}, 403),
        ({**COOKIE, "host": ""}, 403),
        ({**COOKIE, "origin": "http://evil.example"}, 403),
        ({**COOKIE, "origin": "null"}, 403),
        ({**COOKIE, "origin": "http://127.0.0.1:9999"}, 403),
        ({**COOKIE, "origin": "http://["}, 403),
        ({**COOKIE, "sec-fetch-site": "cross-site"}, 403),
        ({**COOKIE, "sec-fetch-site": "same-site"}, 403),
        ({**COOKIE, "sec-fetch-site": "same-origin"}, 200),
        # a proxy asks with a Host of its own, the browser knows the name that was given
        ({**COOKIE, "origin": "https://shop.example"}, 403),
        ({**COOKIE, "origin": "https://shop.example", "sec-fetch-site": "same-site"}, 403),
        ({**COOKIE, "origin": "https://shop.example", "sec-fetch-site": "same-origin"}, 200),
        ({**COOKIE, "origin": "https://evil.example", "sec-fetch-site": "same-origin"}, 403),
    ],
)
def test_every_method_has_the_same_access_check(method, headers, expected):
    assert status(headers, method=method) == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/", 200), ("/static/app.js", 200), ("/api/v1/openapi.json", 401), ("/nothing", 401)],
)
def test_only_static_files_need_no_token(path, expected):
    assert status(path=path) == expected


def test_a_name_with_its_port_is_that_port_only():
    guard = Guard(token="secret-token", hosts={"app:8000"}, cookie="callboard-8080")

    for host, expected in (("app:8000", 200), ("APP:8000", 200), ("app", 403), ("app:80", 403)):
        assert status({**COOKIE, "host": host}, guard=guard) == expected


def test_static_files_are_for_our_own_names_too():
    assert status({"host": "evil.example"}, path="/static/app.js") == 403
    assert status({"host": "evil.example"}, path="/") == 403


def test_the_token_of_the_link_becomes_a_cookie_and_leaves_the_address():
    verdict = GUARD.judge("GET", "/", "token=secret-token", {"host": OWN})

    assert (verdict.status, verdict.cookie) == (303, "secret-token")
    assert status(path="/", query="token=wrong") == 403
    assert status(path="/", query="token=%ff%00") == 403
    assert status(query="token=secret-token") == 401  # elsewhere it does not count


def test_the_link_may_stand_on_a_page_of_another_site():
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}

    assert status(link, path="/", query="token=secret-token") == 303
    assert status({**link, **COOKIE}) == 403
    assert status(link, path="/", method="POST") == 403


def test_a_public_port_is_reached_by_any_address():
    guard = Guard(token="secret-token", any_address=True, cookie="callboard-8080")

    assert status({**COOKIE, "host": "192.0.2.7:8080"}, guard=guard) == 200
    assert status({**COOKIE, "host": "evil.example"}, guard=guard) == 403


def test_tokens_differ_and_are_not_shown():
    assert Guard().token != Guard().token
    assert len(Guard().token) > 30
    assert GUARD.token not in repr(GUARD)


def asked(headers, *, kind="http", path="/api/v1/nodes", query=b""):
    sent, passed = [], []

    async def app(scope, receive, send):
        passed.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"told"})

    async def send(message):
        sent.append(message)

    scope = {"type": kind, "method": "GET", "path": path, "query_string": query}
    scope |= {"headers": [(k.encode(), v.encode()) for k, v in headers], "scheme": "http"}
    asyncio.run(GuardedApp(app, GUARD)(scope, None, send))
    return sent, passed


def test_every_answer_forbids_content_of_other_origins():
    for headers in ([("host", OWN)], [("host", OWN), *COOKIE.items()]):
        sent, _ = asked(headers)
        told = dict(sent[0]["headers"])
        policy = told[b"content-security-policy"].decode()

        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert told[b"x-content-type-options"] == b"nosniff"


def test_a_repeated_security_header_is_refused():
    sent, passed = asked([("host", OWN), ("host", "evil.example"), *COOKIE.items()])

    assert sent[0]["status"] == 400
    assert not passed


def test_contradicting_lengths_and_endless_headers_are_refused():
    lengths = [("content-length", "4"), ("transfer-encoding", "chunked")]
    bomb = [(f"x-{n}", "y" * 1_000) for n in range(20)]
    for headers, status in (
        (lengths, 400),
        ([("content-length", "4"), ("content-length", "4")], 400),
        (bomb, 431),
    ):
        sent, passed = asked([("host", OWN), *COOKIE.items(), *headers])

        assert (sent[0]["status"], passed) == (status, [])
        assert (b"connection", b"close") in sent[0]["headers"]


def test_a_program_is_refused_in_json_with_the_next_step():
    for headers, word in (([], "printed link"), ([("host", OWN)], "link that was printed")):
        sent, _ = asked(headers)

        assert (b"content-type", b"application/json; charset=utf-8") in sent[0]["headers"]
        assert word in json.loads(sent[1]["body"])["error"]


def test_the_cookie_is_for_our_own_pages_only():
    sent, passed = asked([("host", OWN)], path="/", query=b"token=secret-token")
    cookie = dict(sent[0]["headers"])[b"set-cookie"].decode()

    assert "SameSite=Strict" in cookie
    assert "HttpOnly" in cookie
    assert dict(sent[0]["headers"])[b"location"] == b"/"
    assert not passed


def test_a_web_socket_is_refused():
    sent, passed = asked([("host", OWN), *COOKIE.items()], kind="websocket")

    assert sent == [{"type": "websocket.close", "code": 1008}]
    assert not passed
