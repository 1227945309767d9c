"""Every port that speaks HTTP answers its own hosts and its own pages only."""

import ast
import contextlib
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import callboard
from callboard import Endpoint, Node
from callboard.dashboard import DashboardServer
from callboard.gateway.modules.http import HttpModule
from callboard.mqtt import Router, RouterConfig
from callboard.mqtt.port.listener import ListenerSettings
from callboard.operation import HealthServer
from callboard.pages import PROBED_PAGES, PageServer, text_page
from callboard.support.host_guard import Asking, HostGuard
from callboard.topics.monitoring import serve_topics
from tests.sources import mentioning

EVIL = "evil.example.com"
#: Hosts under which a page of another site may have reached a port.
FOREIGN = (
    EVIL,
    f"{EVIL}.",
    EVIL.upper(),
    f"{EVIL}:80",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "localhost@evil.example",
    "evil.example@localhost",
    "localhost,evil.example",
    "localhost evil.example",
    "2130706433",
    "127.1",
    "0x7f.0.0.1",
    "[::1].evil.example",
    "",
)
OWN = ("127.0.0.1", "127.9.9.9", "localhost", "LOCALHOST.", "[::1]", "[::ffff:127.0.0.1]")
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PURGE")


# --- the surfaces ---


class Surface:
    """One server, with paths that it answers."""

    def __init__(self, open_port: Callable, paths: tuple[str, ...], *, upgrades: bool = False):
        self.open_port, self.paths, self.upgrades = open_port, paths, upgrades


def _console(stack, address, hosts):
    config = RouterConfig(console=f"{address}:0", hosts=hosts, sys_interval=0)
    router = stack.enter_context(Router(config))
    return router._console.port


def _mqtt(stack, address, hosts):
    settings = ListenerSettings(f"ws://{address}:0", hosts=hosts)
    return stack.enter_context(Router(RouterConfig((settings,), sys_interval=0))).port


def _zeek(stack, address, hosts):
    endpoint = stack.enter_context(Endpoint())
    return endpoint.listen_web_socket(address, hosts=hosts, insecure=True)


def _pages(stack, address, hosts):
    server = PageServer({"/": lambda: text_page("here")}, address, hosts=hosts)
    stack.callback(server.close)
    return server.port


def _health(stack, address, hosts):
    node = stack.enter_context(Node())
    server = stack.enter_context(HealthServer(node, address, hosts=hosts))
    server.set_ready()
    return server.port


def _topics(stack, address, hosts):
    node = stack.enter_context(Node())
    server = serve_topics(node, (address, 0), hosts)
    stack.callback(server.close)
    return server.port


def _dashboard(stack, address, hosts):
    node = stack.enter_context(Node())
    server = DashboardServer(node, f"{address}:0", hosts=hosts, insecure=True)
    return stack.enter_context(server).port


def _gateway(stack, address, hosts):
    module = HttpModule()
    module._actor = SimpleNamespace(name="surface")
    module.create({"listen": f"{address}:0", "hosts": list(hosts)})
    module.start()
    stack.callback(module.destroy)
    return module.port


SURFACES = {
    "pages": Surface(_pages, ("/", "/nothing")),
    "health": Surface(_health, ("/livez", "/readyz", "/metrics", "/v1/status/json", "/")),
    "topics": Surface(_topics, ("/metrics", "/v1/status/json")),
    "console": Surface(_console, ("/", "/router", "/devices", "/metrics", "/logs")),
    "dashboard": Surface(_dashboard, ("/", "/api/v1/nodes", "/static/app.js")),
    "gateway": Surface(_gateway, ("/", "/path")),
    "mqtt": Surface(_mqtt, ("/mqtt",), upgrades=True),
    "zeek": Surface(_zeek, ("/v1/messages/json",), upgrades=True),
}
PLAIN = [name for name, surface in SURFACES.items() if not surface.upgrades]
UPGRADING = [name for name, surface in SURFACES.items() if surface.upgrades]

#: Every file that makes a server of HTTP, and the surface that it serves. A server in another
#: file has no test of its guard: enter its surface above.
SERVERS = {
    "callboard/web.py": "the base of pages, topics, health, console, gateway",
    "callboard/pages.py": "pages",
    "callboard/operation/health.py": "health",
    "callboard/cli/work/host.py": "health",
    "callboard/topics/monitoring.py": "topics",
    "callboard/mqtt/service/router.py": "console",
    "callboard/cli/own_node.py": "pages: /metrics alone",
    "callboard/gateway/modules/http.py": "gateway",
    "callboard/dashboard/server.py": "dashboard",
    "callboard/dashboard/port.py": "dashboard",
    "callboard/cli/work/dashboard.py": "dashboard",
    "callboard/demo/page.py": "dashboard",
    "callboard/mqtt/port/websocket.py": "mqtt",
    "callboard/zeek/web_socket.py": "zeek",
    "callboard/composition.py": "zeek and dashboard",
}
#: Names of classes that serve HTTP, of libraries and our own.
_SERVING = {
    *(
        "HTTPServer",
        "ThreadingHTTPServer",
        "BaseHTTPRequestHandler",
        "SimpleHTTPRequestHandler",
    ),
    *("WSGIServer", "ServerProtocol", "H11Protocol", "H11Connection", "uvicorn", "hypercorn"),
    *("WebServer", "WebHandler", "PageServer", "HealthServer", "DashboardServer"),
    *("WebSocketServer", "WebSocketStream", "DashboardPort", "aiohttp", "Flask", "FastAPI"),
    *("httptools", "make_server"),
}


@pytest.fixture
def stack():
    with contextlib.ExitStack() as entered:
        yield entered


def send(port, head, body=b""):
    """Send a request as it is written; return the status and the text of the answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
        sock.sendall(head.encode() + b"\r\n" + body)
        answer = b""
        with contextlib.suppress(OSError):
            while b"\r\n\r\n" not in answer or not answer.startswith(b"HTTP/1.1 101"):
                data = sock.recv(65_536)
                answer += data
                if not data:
                    break
    status = answer.split(b" ", 2)[1] if answer else b"0"
    return int(status), answer.decode(errors="replace")


def ask(port, path="/", host="127.0.0.1", method="GET", **headers):
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", "Connection: close"]
    if method in ("POST", "PUT", "PATCH"):
        lines.append("Content-Length: 0")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return send(port, "".join(f"{line}\r\n" for line in lines))


def upgrade(port, path, host="127.0.0.1", **headers):
    asked = {"Upgrade": "websocket", "Sec_WebSocket_Version": "13"}
    asked |= {"Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec_WebSocket_Protocol": "mqtt"}
    lines = [f"GET {path} HTTP/1.1", f"Host: {host}", "Connection: Upgrade"]
    for name, value in (asked | headers).items():
        lines.append(f"{name.replace('_', '-')}: {value}")
    return send(port, "".join(f"{line}\r\n" for line in lines))


# --- requests that each server refuses ---


@pytest.mark.parametrize("name", PLAIN)
def test_no_method_is_answered_under_a_foreign_host(name, stack):
    surface = SURFACES[name]
    port = surface.open_port(stack, "127.0.0.1", ())

    for path in surface.paths:
        for method in METHODS:
            about = {"Origin": f"http://{EVIL}:{port}"} if method != "GET" else {}
            status, text = ask(port, path, f"{EVIL}:{port}", method, **about)
            assert status == 403, (method, path)
            assert method == "HEAD" or "hosts" in text
    for host in FOREIGN:
        assert ask(port, surface.paths[0], host)[0] in (400, 403), host
    for host in OWN:
        assert ask(port, surface.paths[0], f"{host}:{port}")[0] not in (400, 403, 421), host


@pytest.mark.parametrize("name", PLAIN)
def test_a_target_with_a_host_has_to_name_an_own_one(name, stack):
    surface = SURFACES[name]
    port, path = surface.open_port(stack, "127.0.0.1", ()), surface.paths[0]

    for host in (EVIL, f"127.0.0.1@{EVIL}", f"{EVIL}:{port}"):
        status, _ = ask(port, f"http://{host}{path}", f"127.0.0.1:{port}")
        assert status == 403, host


@pytest.mark.parametrize("name", PLAIN)
def test_the_host_stands_there_once_and_browsers_send_it(name, stack):
    port = SURFACES[name].open_port(stack, "127.0.0.1", ())
    path = SURFACES[name].paths[0]

    assert send(port, f"GET {path} HTTP/1.1\r\nConnection: close\r\n")[0] == 400
    twice = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: {EVIL}\r\nConnection: close\r\n"
    assert send(port, twice)[0] == 400


@pytest.mark.parametrize("name", PLAIN)
def test_a_page_of_another_site_is_refused_with_a_known_host(name, stack):
    port, path = SURFACES[name].open_port(stack, "127.0.0.1", ()), SURFACES[name].paths[0]

    for about in (
        {"Origin": f"http://{EVIL}"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ):
        assert ask(port, path, f"127.0.0.1:{port}", "POST", **about)[0] == 403, about
        assert ask(port, path, f"127.0.0.1:{port}", **about)[0] == 403, about


@pytest.mark.parametrize("name", SURFACES)
def test_hosts_names_further_ones_and_a_star_names_all(name, stack):
    surface = SURFACES[name]
    path, send_to = surface.paths[0], upgrade if surface.upgrades else ask
    about = {"Origin": "http://localhost"} if surface.upgrades else {}

    port = surface.open_port(stack, "127.0.0.1", ("shop.example", "APP.example:8000"))
    assert send_to(port, path, EVIL, **about)[0] == 403
    assert send_to(port, path, "app.example:81", **about)[0] == 403
    for host in ("shop.example", "Shop.Example.:81", "app.example:8000"):
        assert send_to(port, path, host, **about)[0] not in (400, 403, 421), host
    if name != "dashboard":
        port = surface.open_port(stack, "127.0.0.1", ("*",))
        assert send_to(port, path, EVIL, **about)[0] not in (400, 403, 421)


@pytest.mark.parametrize("name", PLAIN)
def test_only_pages_of_probes_answer_any_host_and_only_on_a_public_port(name, stack):
    surface = SURFACES[name]
    port = surface.open_port(stack, "0.0.0.0", ())

    for path in surface.paths:
        is_probed = path in PROBED_PAGES
        for host in ("callboard.shop.svc.cluster.local:9464", EVIL):
            assert (ask(port, path, host)[0] == 403) != is_probed, path
            assert ask(port, path, host, "POST", Origin=f"http://{host}")[0] == 403
        for host in ("192.0.2.7", "[2001:db8::7]", socket.gethostname(), "localhost"):
            assert ask(port, path, host)[0] not in (400, 403, 421), host


@pytest.mark.parametrize("name", UPGRADING)
def test_a_web_socket_is_opened_by_own_pages_and_programs_only(name, stack):
    port, (path,) = SURFACES[name].open_port(stack, "127.0.0.1", ()), SURFACES[name].paths
    here = f"127.0.0.1:{port}"

    for host, origin in (
        (f"{EVIL}:{port}", f"http://{EVIL}:{port}"),  # DNS rebinding
        (f"{EVIL}:{port}", "http://localhost"),
        (here, f"http://{EVIL}"),
        (here, "null"),
        (f"localhost@{EVIL}", "http://localhost"),
    ):
        status, text = upgrade(port, path, host, Origin=origin)
        assert status == 403, (host, origin)
        assert "hosts" in text or "origins" in text
    assert upgrade(port, path, EVIL, Sec_Fetch_Site="same-origin")[0] == 403
    assert upgrade(port, path, here, Origin="http://localhost:3000")[0] == 101
    assert upgrade(port, path, "router.svc")[0] == 101  # a program: browsers send Origin


@pytest.mark.parametrize("name", ["gateway", "console", "pages"])
@pytest.mark.parametrize(
    "headers",
    [
        ["Content-Length: 5", "Content-Length: 5"],
        ["Content-Length: 5", "Content-Length: 6"],
        ["Content-Length: 5", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: chunked", "Content-Length: 5"],
        ["Content-Length: 5, 5"],
        ["Content-Length: +5"],
        ["Content-Length: -5"],
        ["Content-Length: 0x5"],
        ["Content-Length: 5_0"],
        ["Content-Length: 5 5"],
        ["Content-Length:"],
        ["Content-Length : 5"],
        ["Content-Length: 5", "X: a\rContent-Length: 6"],
        ["Content-Length: 5", " Content-Length: 6"],
        ["Content-Length: 5", "no colon", "Origin: http://evil.example"],
        ["Content-Length: 5", "X: a\0b"],
    ],
)
def test_lengths_that_contradict_one_another_are_refused(name, headers, stack):
    port = SURFACES[name].open_port(stack, "127.0.0.1", ())
    path = "/logs" if name == "console" else "/"
    head = "".join(f"{line}\r\n" for line in (f"POST {path} HTTP/1.1", "Host: [::1]", *headers))

    assert send(port, head, b"debug")[0] == 400


def test_a_trace_begins_by_post_only(stack):
    port = _console(stack, "127.0.0.1", ())

    assert ask(port, "/trace/CLIENT/0")[0] == 405
    assert ask(port, "/trace/CLIENT/0", method="HEAD")[0] == 405
    assert ask(port, "/trace/CLIENT/0", method="POST")[0] == 200
    assert ask(port, "/logs")[0] == 405


# --- the table ---


def test_every_file_that_serves_http_has_its_surface_in_the_table():
    root = Path(callboard.__file__).parent
    rooms = [root, *(root.parent / room for room in ("actors", "basp", "proxies"))]
    serving = {
        str(path.relative_to(root.parent))
        for room in rooms
        for path, tree in mentioning(room, *_SERVING)
        if _makes_or_derives(tree) & _SERVING
    }
    assert serving == set(SERVERS)


def _makes_or_derives(module):
    """Return the names that a module calls, derives from, or imports from other packages."""
    names = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Call):
            names |= _parts(node.func)
        elif isinstance(node, ast.ClassDef):
            names.update(*map(_parts, node.bases)) if node.bases else None
        elif isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value.partition(":")[2])  # a part that composition.py names
    return names


def _parts(node):
    """Return the names in a dotted name."""
    return {
        getattr(part, "attr", getattr(part, "id", ""))
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute | ast.Name)
    }


# --- the guard alone ---


@pytest.mark.parametrize("host", FOREIGN)
def test_a_guard_knows_no_foreign_host(host):
    assert not HostGuard.of_port("127.0.0.1").knows(host)
    assert not HostGuard.of_port("0.0.0.0", ["shop.example"]).knows(host)


def test_a_loopback_port_refuses_the_address_of_another_machine():
    assert not HostGuard.of_port("127.0.0.1").knows("192.0.2.7")
    assert not HostGuard.of_port("localhost").knows("0.0.0.0")
    assert HostGuard.of_port("192.0.2.7").knows("192.0.2.8:80")
    assert HostGuard.of_port("shop.example").knows("SHOP.example:80")


def test_a_link_on_another_page_is_followed_where_it_may_stand():
    guard = HostGuard.of_port("127.0.0.1")
    asking = Asking(["localhost"], fetched="cross-site")

    assert guard.refusal(asking) is not None
    assert guard.refusal(asking, is_link=True) is None
