"""Every page and every action in a real browser, on a live cluster; who is kept out."""

import http.server
import threading
import time

import pytest

from callboard import Actor, Node, handler
from tests.callboard.dashboard.browser import a_browser
from tests.callboard.dashboard.conftest import NASTY, Client, Cluster, Counter
from tests.polling import eventually


@pytest.fixture(scope="module")
def browser():
    with a_browser() as found:
        yield found


@pytest.fixture
def page(browser, cluster):
    browser.errors()
    browser.size(1280, 860)
    browser.dark(False)
    yield lambda route="overview": browser.go(cluster.hub.dashboard_url, route)
    assert browser.errors() == []
    assert browser.driver.title == "callboard"  # no name has become a script


def test_the_overview_shows_nodes_links_and_the_exact_balance(cluster, page):
    cluster.hub.ref(str(cluster.counter)).ask(1).result(10)

    shown = page()

    shown.shows("Balance of all messages", "exact", "hub", "east", "west", "nothing is wrong")
    graph = "return document.querySelectorAll('.graph circle').length"
    shown.until(lambda: shown.script(graph) == 3)
    assert shown.script("return document.querySelectorAll('.graph line').length") == 2
    shown.until(lambda: shown.script("return !!document.querySelector('.uplot canvas')"))
    assert shown.script("return location.search") == ""  # the token is not in the address


def test_the_first_paint_is_there_soon(browser, cluster):
    browser.open(cluster.hub.dashboard_url)
    entry = """const found = performance.getEntriesByName('first-contentful-paint')[0];
        return found && found.startTime"""

    assert (
        browser.until(lambda: browser.script(entry)) < 5_000
    )  # a busy machine; see benchmarks


def test_actors_are_listed_searched_and_sorted(cluster, page):
    shown = page("actors")
    shown.shows("Idle", "rows")

    shown.write("search", "count")
    shown.shows("1 rows")
    shown.write("search", "")
    shown.click("class")
    shown.until(lambda: "class ↑" in shown.text)


def test_names_are_text_whatever_they_hold(cluster, page):
    shown = page("actors?search=script")
    shown.shows("<script>document.title='owned'</script>")
    shown.go(cluster.hub.dashboard_url, "stores?which=things")
    shown.shows("<script>", "onerror", "\\u202e", "\\u001b", "y" * 100)
    assert shown.script("return document.querySelectorAll('main img, main script').length") == 0
    assert len(NASTY[-1]) == 10_000


def test_an_actor_has_a_page_and_is_sent_to_traced_and_stopped(cluster, page):
    victim = cluster.west.spawn(Counter)
    cluster.west.register("victim", victim)
    shown = page("actors?search=victim")
    shown.click("victim")
    shown.shows("Counter on west", "mailbox", "handled")

    shown.click("trace for a minute")
    shown.shows("traced")
    shown.write("message", "5")
    shown.click("ask")
    shown.shows('send: {"answer":5}')
    shown.until(lambda: "int" in shown.text)
    shown.click("stop")
    shown.shows('stop: {"reason":"normal"}')
    shown.shows("this actor has ended")


def test_the_supervision_tree_is_a_tree(cluster, page):
    page("actors?tree=1").shows("counter", "Idle")


def test_topics_are_listened_to_and_published(cluster, page):
    shown = page("topics")
    shown.shows("/cpu")
    shown.write("topic", "/cpu/browser")
    shown.click("listen")
    shown.shows("listening to /cpu/browser")
    shown.write("value", "<i>7</i>")
    shown.click("publish")
    shown.shows("publish:", "<i>7</i>")


def test_stores_show_keys_and_take_values(cluster, page):
    shown = page("stores")
    shown.click("things")
    shown.shows("leader", "me")
    shown.write("key", "colour")
    shown.write("value", "red")
    shown.click("put")
    shown.shows('put: {"acknowledged":true}', "colour")
    assert cluster.master.get("colour") == "red"


@pytest.mark.parametrize(
    ("route", "text"),
    [("mqtt", "no router runs"), ("logs", "no node writes a log"), ("events", "NodeUp")],
)
def test_each_other_page_says_what_there_is(page, route, text):
    page(route).shows(text)


def test_a_router_and_a_log_are_shown(cluster, page, tmp_path):
    mqtt = pytest.importorskip("callboard.mqtt")
    from callboard.commitlog import CommitLog

    with (
        mqtt.Router(
            mqtt.RouterConfig(listeners=(mqtt.ListenerSettings("127.0.0.1:0"),)),
            node=cluster.hub,
        ) as router,
        CommitLog(tmp_path / "readings") as log,
        router.link("<b>sensor</b>"),
    ):
        log.append("/t", b"one")
        shown = page("mqtt")
        shown.shows("<b>sensor</b>", "published", "delivered")
        for tab in ("subscriptions", "retained", "slow", "bans"):
            shown.click(tab)
            shown.shows(tab)
        shown.go(cluster.hub.dashboard_url, "logs").shows("readings", str(tmp_path))


def test_on_a_phone_nothing_is_wider_than_the_screen(cluster, page):
    shown = page()
    shown.size(390, 800, is_phone=True)
    for route in ("overview", "actors", "topics", "stores", "mqtt", "logs", "events"):
        shown.go(cluster.hub.dashboard_url, route).shows("callboard")
        wide = "return [document.documentElement.scrollWidth, innerWidth]"
        width, most = shown.script(wide)
        assert width <= most, route


def test_dark_is_dark(page):
    shown = page()
    color = "return getComputedStyle(document.body).backgroundColor"
    light = shown.script(color)
    shown.dark(True)

    assert sum(map(int, light[4:-1].split(", "))) > 600
    assert sum(map(int, shown.script(color)[4:-1].split(", "))) < 120


def test_a_killed_node_shows_as_lost(browser):
    with Cluster(actions=False) as cluster:
        browser.open(cluster.hub.dashboard_url).shows("east", "west")
        begun = time.monotonic()
        cluster.east.close()
        browser.until(lambda: "1 of 3 nodes" in browser.text)

        assert time.monotonic() - begun < 10  # a busy machine; see benchmarks
        browser.shows("east is lost")
        assert not [each for each in browser.errors() if "favicon" not in each]


def test_without_leave_there_is_nothing_to_click(browser):
    with Cluster(actions=False) as cluster:
        victim = cluster.hub.spawn(Counter)
        browser.open(cluster.hub.dashboard_url)
        browser.go(cluster.hub.dashboard_url, f"actor?address={victim}")
        browser.shows("only looks")
        assert "kill" not in browser.text


class Many(Actor):
    @handler
    def text(self, message: str) -> None: ...


def test_thousands_of_actors_scroll_and_rows_are_asked_for_as_they_are_shown(browser):
    with Node("many", dashboard=True) as node:
        for _ in range(3_000):
            node.spawn(Many)
        browser.open(node.dashboard_url)
        browser.go(node.dashboard_url, "actors?sort=age").shows("3,000 rows")
        rows = "return document.querySelectorAll('.body .tr').length"
        assert browser.script(rows) <= 120

        browser.script("document.querySelector('.scroll').scrollTop = 36 * 2500")
        shown = """const box = document.querySelector('.scroll').getBoundingClientRect();
            return [...document.querySelectorAll('.body .tr')].filter((row) => {
                const at = row.getBoundingClientRect();
                return at.top > box.top + 40 && at.bottom < box.bottom; }).length"""
        browser.until(lambda: browser.script(shown) >= 5)
        assert browser.script(rows) <= 120


# --- the checklist: a page of another origin ---

EVIL = """<!doctype html><title>evil</title><script>
async function attack(url, options) {
  try { const answer = await fetch(url, {credentials: 'include', ...options});
        return answer.type + ' ' + answer.status + ' ' + (await answer.text()).slice(0, 200); }
  catch (error) { return 'refused by the browser'; }
}
</script>"""


@pytest.fixture
def evil():
    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(EVIL.encode())

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://localhost:{server.server_port}/"
        server.shutdown()


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
def test_a_page_of_another_site_reads_and_does_nothing(browser, cluster, evil, method):
    victim = cluster.west.spawn(Counter)
    link = cluster.hub.dashboard_url
    browser.open(link).shows("Balance")  # the browser has the cookie
    browser.open(evil)
    base = link.partition("?token=")[0]
    for mode in ("cors", "no-cors"):
        path = "api/v1/actions/kill" if method == "POST" else "api/v1/nodes"
        options = {"method": method, "mode": mode}
        if method == "POST":
            options["body"] = f'{{"address": "{victim}"}}'
        told = browser.driver.execute_async_script(
            "const done = arguments[2]; attack(arguments[0], arguments[1]).then(done)",
            base + path,
            options,
        )
        assert told in ("refused by the browser", "opaque 0 "), told
    assert victim.ask(1).result(10) == 1
    browser.errors()


def test_a_page_of_another_site_cannot_show_it_in_a_frame(browser, cluster, evil):
    browser.open(cluster.hub.dashboard_url).shows("Balance")
    browser.open(evil)
    browser.script(
        """const frame = document.createElement('iframe');
        frame.src = arguments[0]; document.body.append(frame)""",
        Client(cluster.hub.dashboard_url).base,
    )
    eventually(
        lambda: any("frame" in each.lower() for each in browser.errors()), 30, interval=0.1
    )


def test_the_cookie_is_not_for_scripts_and_strict(browser, cluster):
    browser.open(cluster.hub.dashboard_url).shows("Balance")

    port = cluster.hub.dashboard_url.split(":")[2].partition("/")[0]
    (cookie,) = [c for c in browser.driver.get_cookies() if c["name"] == f"callboard-{port}"]
    assert (cookie["sameSite"], cookie["httpOnly"]) == ("Strict", True)
    assert browser.script("return document.cookie") == ""
