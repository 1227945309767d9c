"""Every page and every action in a real browser, on a live cluster; refused visitors."""

import contextlib
import csv
import http.server
import io
import json
import threading
import uuid
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from callboard import Actor, Node, Rights, handler, traced
from callboard.pipeline.progress import Progress, QueryStatus
from tests.callboard.dashboard.browser import a_browser
from tests.callboard.dashboard.conftest import NASTY, Client, Cluster, Counter, Failing
from tests.callboard.entity.journal.carts import Cart
from tests.polling import eventually

TITLES = {
    f"{name} · callboard"
    for name in (
        *("Overview", "Actors", "Actor", "Topics", "Stores"),
        *("MQTT", "Entities", "Logs", "Queries", "Queues", "Events"),
    )
}


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
    assert browser.driver.title in TITLES  # no name has become a script


@pytest.mark.quick
def test_the_overview_shows_nodes_links_and_the_exact_balance(browser):
    with Cluster(actions=False) as cluster:
        cluster.hub.ref(str(cluster.west.spawn(Counter))).ask(1).result(60)

        shown = browser.open(cluster.hub.dashboard_url)

        shown.shows("Balance of all messages", "exact", "hub", "east", "west")
        shown.shows("nothing is wrong", seconds=120)  # a busy machine is slow for a minute
        graph = "return document.querySelectorAll('.graph circle').length"
        shown.until(lambda: shown.script(graph) == 3)
        assert shown.script("return document.querySelectorAll('.graph line').length") == 2
        shown.until(lambda: shown.script("return !!document.querySelector('.uplot canvas')"))
        assert shown.script("return location.search") == ""  # no token in the address
        assert not [each for each in browser.errors() if "favicon" not in each]


def test_the_first_paint_is_fast(browser, cluster):
    entry = """const found = performance.getEntriesByName('first-contentful-paint')[0];
        return found && found.startTime"""

    def paints():
        browser.open(cluster.hub.dashboard_url)
        return browser.until(lambda: browser.script(entry))

    # Other work of the machine may delay one of them; benchmarks measure how soon it is.
    assert any(paints() < 2_000 for _ in range(20))


def test_actors_are_listed_searched_and_sorted(cluster, page):
    shown = page("actors")
    shown.shows("Idle", "rows")

    cluster.west.register("searched", cluster.west.spawn(Counter))
    shown.write("search", "searched")
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
    shown.click("really stop?")
    shown.shows('stop: {"reason":"normal"}')
    shown.shows("this actor has ended")


def test_the_supervision_tree_is_a_tree(cluster, page):
    page("actors?tree=1").shows("counter", "250 × Idle", "__proto__", "constructor")


def test_an_actor_is_killed_once_that_is_meant(cluster, page):
    victim = cluster.west.spawn(Counter)
    shown = page(f"actor?address={victim}")
    shown.click("kill")
    shown.shows("really kill?")
    assert victim.ask(1).result(60) == 1

    shown.click("really kill?")
    shown.shows('kill: {"reason":"killed"}', "this actor has ended")


def test_each_row_has_a_link_to_all_of_it(cluster, page):
    shown = page("stores?which=things&search=leader")
    shown.shows("1 rows")
    more = shown.first("[aria-label='all of this row'].more")
    more.send_keys("\ue007")
    drawer = "return (document.querySelector('.drawer') || {}).innerText || ''"
    shown.until(lambda: "leader" in shown.script(drawer))
    link = shown.script("return location.hash")
    assert shown.script("return document.activeElement.className") == "drawer"
    shown.driver.switch_to.active_element.send_keys("\ue00c")  # escape
    shown.until(lambda: not shown.script(drawer))
    assert shown.script("return document.activeElement.className") == "more"

    shown.go(cluster.hub.dashboard_url, "events").shows("rows")
    shown.go(cluster.hub.dashboard_url, link.removeprefix("#/"))
    shown.until(lambda: "leader" in shown.script(drawer))


def test_all_is_reached_by_keys(cluster, page):
    cluster.west.register("by_keys", cluster.west.spawn(Counter))
    shown = page("actors")
    shown.shows("Idle")
    body = shown.driver.find_element("css selector", "body")
    body.send_keys("/")
    focus = (
        "const it = document.activeElement; return it.ariaLabel || it.innerText || it.tagName"
    )
    assert shown.script(focus) == "search"
    shown.driver.switch_to.active_element.send_keys("by_keys\t\t\t")
    shown.shows("1 rows")
    assert shown.script(focus) == "actors"  # the rows, which arrows scroll
    shown.driver.switch_to.active_element.send_keys("\t\t")
    shown.driver.switch_to.active_element.send_keys("\ue007")
    shown.until(lambda: "class ↑" in shown.text)
    style = "return getComputedStyle(document.activeElement).outlineStyle"
    assert shown.script(style) == "solid"
    nameless = """return [...document.querySelectorAll('button,a,input,select,textarea')]
        .filter((each) => !(each.ariaLabel || each.innerText.trim())).length"""
    for route in ("actors", "topics", "stores?which=things", "mqtt", "events"):
        shown.go(cluster.hub.dashboard_url, route).shows("callboard", "rows")
        assert shown.script(nameless) == 0, route


def test_a_table_is_saved_as_shown(cluster, page):
    shown = page("stores?which=things")
    shown.shows("leader")
    shown.script(
        """window.saved = []; URL.createObjectURL = (blob) => {
            blob.text().then((text) => window.saved.push(text)); return '#'; };
        HTMLAnchorElement.prototype.click = () => {}"""
    )
    shown.click("CSV")
    shown.until(lambda: shown.script("return window.saved.length") == 1)
    shown.click("JSON")
    shown.until(lambda: shown.script("return window.saved.length") == 2)

    text, as_json = shown.script("return window.saved")
    shown.driver.refresh()  # later tests need the functions of the page
    rows = list(csv.DictReader(io.StringIO(text)))
    wanted = {name[:2_000] for name in NASTY}
    assert wanted <= {row["key"] for row in json.loads(as_json)}
    assert wanted - {"=1+1"} <= {row["key"] for row in rows}
    assert "'=1+1" in {row["key"] for row in rows}  # no formula where a table opens it


@pytest.mark.parametrize(
    ("route", "text"),
    [
        *(("constructor", "Balance"), ("__proto__", "Balance"), ("stores?which=x", "no keys")),
        *(("mqtt?tab=constructor", "no router runs"), ("actors?search=%E0%A4", "nothing")),
        ("actor?address=nonsense", "'nonsense' is not an address"),
    ],
)
def test_an_address_that_was_bent_shows_a_page(page, route, text):
    page(route).shows(text)


def test_topics_are_listened_to_and_published(cluster, page):
    shown = page("topics")
    shown.shows("/cpu")
    shown.write("topic", "/cpu/browser")
    shown.click("listen")
    shown.shows("listening to /cpu/browser")
    shown.write("value", "<i>7</i>")
    shown.click("publish")
    shown.shows("publish:", "<i>7</i>")


def test_a_topic_that_was_searched_for_is_listened_to_by_a_click(cluster, page):
    shown = page("topics?search=cpu")
    shown.click("/cpu")
    shown.shows("listening to /cpu")


def test_a_store_shows_its_keys_and_accepts_new_values(cluster, page):
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
    [
        ("mqtt", "no router runs"),
        ("entities", "no node hosts"),
        ("logs", "no node writes a log"),
        ("events", "NodeUp"),
    ],
)
def test_every_other_page_shows_its_rows(page, route, text):
    page(route).shows(text)


def test_entities_are_shown_with_their_slots_and_events(cluster, page, tmp_path):
    nasty = "<b>u/1</b>"
    with Node("carts") as carts:
        carts.connect(cluster.hub.address)
        carts.host(Cart, state=f"sqlite:{tmp_path}/shop.db")
        carts.entity(Cart, nasty).ask("tea & <i>milk</i>").result(60)

        shown = page("entities")
        shown.shows(Cart.name, "sqlite:")
        shown.click(Cart.name)
        shown.shows("256 slots", "carts 256", "<b>u/1</b>")
        assert shown.script("return document.querySelectorAll('div.slots i.s0').length") == 256
        shown.click("<b>u/1</b>")
        shown.shows("journal-tests.Added", "tea & <i>milk</i>")


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


def test_an_event_of_a_traced_message_links_to_its_trace(cluster, page):
    trace = f"{uuid.uuid4().int:032x}"
    failing = [node.spawn(Failing) for node in (cluster.west, cluster.east)]
    with traced(f"00-{trace}-00f067aa0ba902b7-01"):
        for each in failing:
            cluster.hub.ref(str(each)).tell("no more of it")
    shown = page("events?kind=ActorFailed")
    shown.shows(trace, "no more of it")
    shown.click(trace)
    shown.until(lambda: f"search={trace}" in shown.script("return location.hash"))
    shown.shows("2 rows", "east", "west")


#: Clicks a link between the drawing of a page and what is done after each drawing.
CLICK_AFTER_DRAWING = """const [text, done] = arguments;
    const link = [...document.querySelectorAll('main a')].find((a) => a.innerText === text);
    requestAnimationFrame(() => setTimeout(() => { link.click(); setTimeout(done, 500); }));
    const field = document.querySelector("main input[type='search']");
    field.value = "no more";
    field.dispatchEvent(new Event("input", { bubbles: true }));"""


def test_a_link_works_while_its_page_is_redrawn(cluster, page):
    trace = f"{uuid.uuid4().int:032x}"
    failing = cluster.west.spawn(Failing)
    with traced(f"00-{trace}-00f067aa0ba902b7-01"):
        cluster.hub.ref(str(failing)).tell("no more of it")
    for _ in range(5):
        shown = page("events?kind=ActorFailed")
        shown.shows(trace, "no more of it")

        shown.driver.execute_async_script(CLICK_AFTER_DRAWING, trace)

        assert shown.script("return location.hash") == f"#/events?search={trace}"


def test_running_queries_and_their_results_are_shown(cluster, page):
    progress = {"query": "quantiles", "batch": 7, "rows": 100, "rate": 50.0, "seconds": 2.0}
    progress |= {"offset": 900, "end": 1_000, "watermark": "", "at": ""}
    now = datetime.now(UTC).isoformat()
    status = QueryStatus("quantiles", "/logs/<b>cpu</b>", 5, "<i>host</i>", now, updated=now)
    status = replace(status, undecodable=3, last=Progress(**progress))
    shown = page("queries")
    shown.shows("No query tells how far it is", "callboard pipeline run")

    def publish():
        cluster.there.publish(status.topic, status.as_message())
        cluster.there.publish("/quantiles/<u>x</u>", {"p50": 0.5, "p99": 0.9, "start": "x"})
        return "900 of 1,000, 100 wait" in shown.text and "<u>x</u>" in shown.text

    eventually(publish, 30, interval=0.3)
    shown.shows("runs", "dead letters\n3", "batch 7", "<i>host</i>", "/logs/<b>cpu</b>")
    shown.until(lambda: shown.script("return !!document.querySelector('.uplot canvas')"))
    about = "return document.querySelector('.plot').ariaLabel"
    assert "p50 0.5, p99 0.9" in shown.script(about)


def test_names_of_nodes_are_text_in_the_graph_and_everywhere(browser):
    names = ["<b>x</b>", "__proto__", "constructor"]
    with Node("hub", dashboard=True) as hub, contextlib.ExitStack() as stack:
        hub.listen("127.0.0.1", 0)
        for name in names:
            stack.enter_context(Node(name)).connect(hub.address)
        browser.open(hub.dashboard_url).shows("● 4 nodes", *names)
        labels = (
            "return [...document.querySelectorAll('.graph .name')].map((e) => e.textContent)"
        )
        browser.until(lambda: {"<b>x</b>", "__proto__"} <= set(browser.script(labels)))
        assert "<b>x</b> is up" in browser.script(
            "return document.querySelector('.graph').getAttribute('aria-label')"
        )
        for other in hub.nodes():
            hub.disconnect(other.node_id, 60.0)
        browser.shows("✕ 3 of 4 nodes", "__proto__ is lost", "<b>x</b> is lost")
        assert not browser.errors()


def test_a_page_reports_that_its_node_is_lost_and_resumes_when_it_is_back(browser):
    with Node("shop", dashboard=True) as node:
        address = node.dashboard_url.split("/")[2]
        browser.open(node.dashboard_url).shows("● 1 nodes", "shop")
    browser.shows("no answer, trying again")
    browser.errors()
    with Node("again", dashboard=address) as node:
        browser.shows("This page needs the link that was printed")
        browser.open(node.dashboard_url).shows("● 1 nodes", "again")
    browser.errors()


def test_rights_limit_the_rows_and_actions(browser):
    looks = Rights(inspect=True, stop=["victim"], monitor=["victim"])
    given = {"looks": looks, "nothing": Rights(), "member": Rights.member()}
    with Node("shop", permissions=given) as shop, Node("far", secret="m") as far:
        shop.listen("127.0.0.1", 0, secrets={"looks": "a", "nothing": "b", "member": "m"})
        far.connect(shop.address)
        victim, other = shop.spawn(Counter), shop.spawn(Counter)
        shop.register("victim", victim)
        shop.register("other", other)
        with page_of(shop, "a") as node:
            browser.open(node.dashboard_url).shows("shop", "● 2 nodes")
            # A leaf sees its neighbour only, and the accounts of this neighbour with others.
            lines = [line for line in browser.text.splitlines() if "far" in line]
            assert all(line.strip() == "shop → far" for line in lines), lines
            browser.go(node.dashboard_url, f"actor?address={other}").shows("Counter on shop")
            browser.click("kill")
            browser.click("really kill?")
            browser.shows("kill was not done", "right")
            assert other.ask(1).result(60) == 1
            client = Client(node.dashboard_url)
            status, told = client.act("kill", address=str(other))
            assert (status, "permissions" in told["error"]) == (403, True)
            assert client.act("stop", address=str(victim))[0] == 200
        with page_of(shop, "b") as node:
            browser.open(node.dashboard_url).shows("⊘", "refused", "inspect")
            status, text, _ = Client(node.dashboard_url).ask(f"api/v1/actor?address={other}")
            assert (status, "inspect" in json.loads(text)["error"]) == (403, True)
            browser.go(node.dashboard_url, "actors").shows("shop did not answer", "inspect")
    browser.errors()


@contextlib.contextmanager
def page_of(shop, secret):
    with Node("page", dashboard=True, actions=True, secret=secret) as node:
        node.connect(shop.address)
        yield node


def test_on_a_phone_no_element_is_wider_than_the_screen(cluster, page):
    shown = page()
    shown.size(390, 800, is_phone=True)
    for route in (
        "overview",
        "actors",
        "topics",
        "stores",
        "mqtt",
        "entities",
        "logs",
        "queries",
        "queues",
        "events",
    ):
        shown.go(cluster.hub.dashboard_url, route).shows("callboard")
        wide = "return [document.documentElement.scrollWidth, innerWidth]"
        width, most = shown.script(wide)
        assert width <= most, route


def test_the_last_hour_is_shown_as_curves_also_in_the_dark_and_on_a_phone(page, monkeypatch):
    monkeypatch.setattr("callboard.proxies.monitoring.figure_history.SAMPLE_SECONDS", 0.5)
    shown = page()
    charts = "return document.querySelectorAll('[aria-label=\"last hour\"] canvas').length"
    shown.until(lambda: shown.script(charts) == 3, 60)
    shown.shows("Messages a second", "Age of the oldest message", "Memory of each node")
    shown.dark(True)
    shown.size(390, 800, is_phone=True)
    shown.until(lambda: shown.script(charts) == 3, 60)
    width, most = shown.script("return [document.documentElement.scrollWidth, innerWidth]")
    assert width <= most


def test_dark_is_dark(page):
    shown = page()
    color = "return getComputedStyle(document.body).backgroundColor"
    light = shown.script(color)
    shown.dark(True)

    assert sum(map(int, light[4:-1].split(", "))) > 600
    assert sum(map(int, shown.script(color)[4:-1].split(", "))) < 120


def test_a_lost_node_is_an_alarm_and_a_closed_one_is_not(browser):
    with Cluster(actions=False) as cluster:
        browser.open(cluster.hub.dashboard_url).shows("east", "west")
        cluster.hub.disconnect(cluster.east.node_id, 60.0)

        browser.shows("1 of 3 nodes", "east is lost")
        cluster.west.close()
        browser.shows("○ closed", "1 of 3 nodes")
        assert not [each for each in browser.errors() if "favicon" not in each]


def test_without_permission_the_page_shows_no_actions(browser):
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
def test_a_page_of_another_site_can_neither_read_nor_act(browser, cluster, evil, method):
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
    assert victim.ask(1).result(60) == 1
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
