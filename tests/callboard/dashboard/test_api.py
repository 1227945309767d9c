"""The API against a live cluster: its rows, its actions, its refusals."""

import asyncio
import gc
import json
import socket
import threading
import uuid

import pytest

from callboard import Node, Rights, traced
from callboard.actors.errors import RemoteError
from callboard.commitlog import CommitLog
from callboard.dashboard import DashboardError, DashboardServer
from callboard.dashboard.actions import DashboardAction
from callboard.dashboard.api import VIEWS
from callboard.dashboard.collector import ClusterWatch
from callboard.dashboard.streams import heard
from callboard.errors import WrongValue
from tests.callboard.dashboard.conftest import NASTY, Client, Cluster, Counter, Failing
from tests.polling import eventually


def test_each_view_has_an_answer(cluster):
    needed = {"which": "things", "address": str(cluster.counter)}
    for name, view in VIEWS.items():
        given = {each.name: needed[each.name] for each in view.parameters if each.is_needed}

        assert cluster.client.read(name, **given), name


def test_nodes_are_listed_with_their_message_accounts(cluster):
    cluster.hub.ref(str(cluster.counter)).ask(1).result(60)

    rows = {row["node"]: row for row in cluster.client.read("nodes")["rows"]}

    assert set(rows) == {"hub", "east", "west"}
    assert all(row["state"] == "up" for row in rows.values())
    assert rows["east"]["actor_count"] >= 250
    for pair in cluster.client.read("overview")["pairs"]:
        assert pair["sent"] == pair["confirmed"] + pair["lost"] + pair["in_flight"]


@pytest.mark.parametrize("skip", [0, 120, 230])
@pytest.mark.parametrize("sort", ["depth", "name", "class", "age"])
def test_rows_of_all_nodes_form_one_sorted_list(cluster, skip, sort):
    everything = cluster.client.read("actors", sort=sort, limit=5_000)
    part = cluster.client.read("actors", sort=sort, limit=10, skip=skip)

    assert part["count"] == everything["count"] == len(everything["rows"])
    wanted = [row["address"] for row in everything["rows"]][skip : skip + 10]
    if sort == "age":  # rows of one moment, whose ages are no longer told apart
        assert len(part["rows"]) == len(wanted)
    else:
        assert [row["address"] for row in part["rows"]] == wanted


def test_a_search_matches_any_part_of_an_actors_name(cluster):
    found = cluster.client.read("actors", search="COUNT")

    assert [row["name"] for row in found["rows"]] == ["counter"]
    assert found["rows"][0]["actor_class"] == "Counter"
    assert {row["node"] for row in cluster.client.read("actors", node="east")["rows"]} == {
        "east"
    }


def test_rows_equal_those_that_the_command_prints(cluster, capsys):
    from callboard.cli import main

    assert main(["cluster", "ps", cluster.hub.address, "--json", "--match", "Counter"]) == 0
    (printed,) = json.loads(capsys.readouterr().out)["rows"]
    (told,) = cluster.client.read("actors", search="counter")["rows"]

    assert set(printed) == set(told)
    assert printed["address"] == told["address"]


def test_names_are_shown_unchanged(cluster):
    rows = cluster.client.read("actors", node="east", limit=500)["rows"]
    names = {row["actor_class"] for row in rows}

    assert set(NASTY) <= names
    keys = {row["key"] for row in cluster.client.read("stores/keys", which="things")["rows"]}
    assert {name[:2_000] for name in NASTY} <= keys


def test_topics_are_counted_while_a_page_is_open(cluster):
    def look():
        cluster.there.publish("/cpu/load", 0.5)
        rows = cluster.client.read("topics")["rows"]
        return any(row["topic"] == "/cpu/load" and row["published"] for row in rows)

    eventually(look, interval=0.05)
    rows = cluster.client.read("topics", search="/cpu")["rows"]
    assert any(row["topic"] == "/cpu" and row["subscribers"] for row in rows)


def test_a_closed_store_is_not_shown_even_if_the_program_still_holds_it(cluster):
    with cluster.there.attach_clone("things") as clone:
        eventually(lambda: len(cluster.client.read("stores")["rows"]) == 2, interval=0.1)

    eventually(lambda: len(cluster.client.read("stores")["rows"]) == 1, interval=0.1)
    assert clone is not None


def test_a_store_lists_its_keys_values_and_expiry(cluster):
    (store,) = cluster.client.read("stores")["rows"]
    (leader,) = cluster.client.read("stores/keys", which="things", search="leader")["rows"]

    assert (store["store"], store["role"], store["node"]) == ("things", "master", "hub")
    assert leader["value"] == "me"
    assert 0 < leader["expires"] <= 300


def test_an_actor_is_stopped_and_that_is_an_event(cluster):
    victim = cluster.west.spawn(Counter)
    events = []
    with cluster.hub.subscribed(events.append):
        told = cluster.client.act("stop", address=str(victim))
        again = cluster.client.act("stop", address=str(victim))

    assert told == (200, {"outcome": {"reason": "normal"}})
    assert again[0] == 409
    done = [each for each in events if isinstance(each, DashboardAction)]
    assert [(each.who, each.action, each.target) for each in done] == [
        ("127.0.0.1", "stop", str(victim))
    ] * 2
    assert done[1].outcome.startswith("failed")
    eventually(
        lambda: cluster.client.read("events", kind="DashboardAction")["rows"], interval=0.1
    )


def test_events_of_a_traced_message_name_its_trace_over_nodes(cluster):
    trace = f"{uuid.uuid4().int:032x}"
    ended = cluster.east.spawn(Failing)
    ended.kill()
    eventually(lambda: cluster.east.monitor(ended).result(60))
    failing = [cluster.west.spawn(Failing) for _ in range(2)]
    with traced(f"00-{trace}-00f067aa0ba902b7-01"):
        for each, message in ((ended, "x"), (failing[0], "x"), (failing[1], 5)):
            cluster.hub.ref(str(each)).tell(message)
        cluster.hub.ref(str(cluster.counter)).tell(object.__name__)
    cluster.hub.ref(str(cluster.counter)).tell("without")

    def told():
        rows = cluster.client.read("events", search=trace)["rows"]
        return sorted((row["at"], row["kind"]) for row in rows)

    wanted = [*[("west", "ActorFailed")] * 2, ("west", "Unexpected")]
    found = eventually(lambda: len(told()) == 4 and told(), interval=0.1)
    # The sender's node may have heard of the end already.
    assert found in ([("east", "DeadLetter"), *wanted], [("hub", "DeadLetter"), *wanted])


def test_messages_are_sent_of_registered_types(cluster):
    address = str(cluster.counter)
    before = cluster.client.act("send", address=address, message=0, ask=True)[1]["outcome"]

    told = cluster.client.act(
        "send", address=address, type="dashboardtest.Add", message={"by": 5}, ask=True
    )

    assert told == (200, {"outcome": {"answer": before["answer"] + 5}})
    wrong = cluster.client.act("send", address=address, type="dashboardtest.Add", message={})
    assert wrong[0] == 409
    assert "its fields are: by" in wrong[1]["error"]
    assert "--app" in cluster.client.act("send", address=address, type="no.Such")[1]["error"]


def test_a_value_can_be_put_and_a_topic_published(cluster):
    assert cluster.client.act("put", store="things", key="new", value=[1, 2])[0] == 200
    assert cluster.client.act("publish", topic="/cpu/page", value=1)[0] == 200
    assert cluster.master.get("new") == (1, 2)


def test_dead_jobs_are_listed_requeued_and_discarded(cluster, tmp_path):
    queue = cluster.west.queue("mails", state=f"sqlite:{tmp_path}/jobs.db", attempts=1)
    for name in ("ann", "bob"):
        queue.put(name).result(10)
        queue.take().result(10).nack(reason="no such user").result(10)
    ann, bob = cluster.client.read("queues/dead", which="mails", rising="true")["rows"]

    assert (ann["value"], ann["reason"], ann["node"]) == ('"ann"', "no such user", "west")
    for action, job in (("requeue", ann["job"]), ("discard", bob["job"])):
        outcome = {"outcome": {"changed": 1}}
        assert cluster.client.act(action, queue="mails", jobs=[job]) == (200, outcome)
    eventually(lambda: cluster.client.read("queues/dead", which="mails")["rows"] == [])
    (row,) = cluster.rows("queues")
    assert (row["queue"], row["ready"]) == ("mails", 1)


def test_an_actor_is_traced_and_has_its_own_table_again(cluster):
    address, cell = str(cluster.counter), cluster.counter.target
    own = cell.table
    cluster.client.read("trace", address=address, seconds=30)
    cluster.hub.ref(address).ask(1).result(60)

    rows = cluster.client.read("trace", address=address, seconds=30)["rows"]

    assert rows[-1]["message"] == "int"
    assert rows[-1]["sender"] == "node hub"
    cell.table.record = None  # as if it were over
    cell.table = own


def test_no_action_is_carried_out_without_permission():
    with Cluster(actions=False) as cluster:
        victim = cluster.hub.spawn(Counter)
        for action in ("stop", "kill", "send", "publish", "put"):
            status, told = cluster.client.act(action, address=str(victim))
            assert (status, "allow-actions" in told["error"]) == (403, True)
        assert victim.ask(1).result(60) == 1
        assert cluster.client.read("session")["actions"] is False


def test_a_refused_kill_is_forbidden_and_one_of_a_lost_node_is_in_conflict():
    with Node("shop", permissions={"page": Rights(inspect=True)}) as shop:
        shop.listen("127.0.0.1", 0, secrets={"page": "a"})
        victim = shop.spawn(Counter)
        with Node("page", dashboard=True, actions=True, secret="a") as page:
            page.connect(shop.address)
            client = Client(page.dashboard_url)

            refused = client.act("kill", address=str(victim))
            assert victim.ask(1).result(60) == 1
            shop.close()
            assert eventually(lambda: not page.context.is_reachable(victim.node_id))
            lost = client.act("kill", address=str(victim))

    assert (refused[0], "permissions" in refused[1]["error"]) == (403, True)
    assert lost[0] == 409


def test_the_json_of_an_action_has_a_size_limit(cluster):
    path = "api/v1/actions/publish"

    assert cluster.client.ask(path, "POST", {}, Content_Type="text/plain")[0] == 415
    assert cluster.client.ask(path, "POST", {"topic": "x" * (1 << 21)})[0] == 413
    assert cluster.client.ask(path, "POST", {"topic": ""})[0] == 422
    assert cluster.client.ask(path)[0] == 405


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Authorization": ""}, 401),
    ],
)
def test_pages_of_other_sites_are_refused_on_every_method(cluster, method, headers, status):
    assert cluster.client.ask("api/v1/nodes", method, **headers)[0] == status


def test_the_cookie_is_enough_where_host_and_origin_are_ours(cluster):
    client = cluster.client
    port = client.base.split(":")[2].strip("/")
    ours = {"Authorization": "", "Cookie": f"callboard-{port}={client.token}"}
    ours |= {"Origin": client.base.strip("/"), "Sec_Fetch_Site": "same-origin"}
    expected = {"GET": 200, "HEAD": 200, "POST": 405, "PUT": 405, "DELETE": 405, "OPTIONS": 405}
    for method, status in expected.items():
        assert client.ask("api/v1/nodes", method, **ours)[0] == status, method
    for wrong in (
        {"Host": "evil.example"},
        {"Origin": "http://evil.example"},
        {"Cookie": ""},
        {"Cookie": f"callboard={client.token}"},
    ):
        for path in ("api/v1/stream?view=nodes", "api/v1/actions/stop", "api/v1/openapi.json"):
            for method in expected:
                assert client.ask(path, method, **(ours | wrong))[0] in (401, 403), (
                    method,
                    path,
                )


def test_each_mistake_is_reported_in_one_line(cluster):
    for query in ("limit=-1", "limit=x", "rising=1", "sort=nothing", "search=%00"):
        status, text, _ = cluster.client.ask(f"api/v1/actors?{query}")
        assert (status, "error" in json.loads(text)) == (400, True)
    assert cluster.client.ask("api/v1/nothing")[0] == 404
    assert cluster.client.ask("api/v1/actor?address=nonsense")[0] == 409
    assert cluster.client.ask("api/v1/stream?view=nothing")[0] == 400


def test_an_ambiguous_request_is_refused_and_its_connection_closed(cluster):
    host, token = cluster.client.base.split("/")[2], cluster.client.token
    head = f"HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n"
    hidden = f"GET /api/v1/nodes {head}\r\n"
    lengths = "Content-Length: 4\r\nTransfer-Encoding: chunked"
    text = f"POST /api/v1/actions/stop {head}{lengths}\r\n\r\n0\r\n\r\n{hidden}"
    with socket.create_connection(host.split(":"), timeout=120) as sent:
        sent.sendall(text.encode())
        answer = b"".join(iter(lambda: sent.recv(65_536), b""))

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1


def test_a_client_that_disconnects_in_a_request_causes_no_traceback(cluster, caplog):
    host, token = cluster.client.base.split("/")[2], cluster.client.token
    head = (
        f"POST /api/v1/actions/stop HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}"
    )
    more = "Content-Type: application/json\r\nContent-Length: 9"
    with socket.create_connection(host.split(":"), timeout=120) as sent:
        sent.sendall(f"{head}\r\n{more}\r\n\r\n{{".encode())
        cluster.client.read("nodes")  # it has been read by then
    cluster.client.read("nodes")

    assert "Traceback" not in caplog.text
    assert not [each for each in caplog.records if each.exc_info]


@pytest.mark.parametrize(
    ("path", "method", "body", "status"),
    [
        ("api/v1/nothing", "GET", None, 404),
        ("api/v1/nodes", "DELETE", None, 405),
        ("api/v1/actors?limit=x", "GET", None, 400),
        ("api/v1/actor?address=nonsense", "GET", None, 409),
        ("api/v1/actions/send", "POST", {"adress": "x", "<b>\u202e": 1}, 422),
        ("api/v1/actions/put", "POST", {"store": "things", "key": 10**30}, 409),
    ],
)
def test_every_error_is_json_with_one_line_and_the_next_step(
    cluster, path, method, body, status
):
    told, text, headers = cluster.client.ask(path, method, body)
    error = json.loads(text)["error"]

    assert (told, headers["Content-Type"]) == (status, "application/json")
    assert error.isprintable()
    assert any(word in error for word in (";", "use ", "must be a number"))


def test_an_unexpected_error_is_reported_and_logged(cluster, caplog, monkeypatch):
    def breaks(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(ClusterWatch, "nodes", breaks)
    status, text, _ = cluster.client.ask("api/v1/nodes")

    assert (status, "log of this node" in json.loads(text)["error"]) == (500, True)
    assert "ZeroDivisionError" in caplog.text


def stream(client, query):
    import urllib.request

    headers = {"Authorization": f"Bearer {client.token}"}
    request = urllib.request.Request(f"{client.base}api/v1/stream?{query}", None, headers)
    return urllib.request.urlopen(request, timeout=120)


def told(found):
    line = found.readline()
    found.readline()
    return json.loads(line.removeprefix(b"data: "))


def test_a_stream_sends_the_shown_rows_and_then_their_changes(cluster):
    with stream(cluster.client, "view=actors&limit=5") as page:
        whole = told(page)["whole"]
        later = told(page)

    assert len(whole["rows"]["order"]) == 5
    assert whole["summary"]["nodes"] == 3
    assert "whole" not in later
    assert len(json.dumps(later)) < len(json.dumps(whole))


def test_a_page_listens_to_a_topic(cluster):
    with stream(cluster.client, "view=listen&topic=/heard") as page:
        assert told(page) == {"listening": "/heard"}
        found = {}
        while not found:  # the other node hears of the subscription a moment later
            cluster.there.publish("/heard/x", "<b>")
            found = told(page)

    assert found["messages"][0] == {"topic": "/heard/x", "value": "<b>"}


def test_a_flood_reaches_a_page_in_bounded_parts():
    flood = [("/t", "x" * 15_000)] * 300 + [("/t", {"huge": "y" * 1_000_000}), ("/t", 7)]

    answer = heard(flood, 11)

    assert answer["messages"][-1] == {"topic": "/t", "value": 7}
    assert len(answer["messages"][-2]["value"]) < 30_000
    assert len(json.dumps(answer)) < 400_000
    assert len(answer["messages"]) + answer["left_out"] == len(flood) + 11


def test_a_file_name_that_is_not_utf_8_hides_no_rows(cluster, tmp_path):
    odd = "caf\udce9"
    with pytest.raises(RemoteError, match="caf"):
        cluster.east.spawn(Failing).ask(odd).result(60)
    with CommitLog(tmp_path / odd / "log") as log:
        log.append("/t", 1)
        logs = cluster.client.read("logs", search="caf")
    escaped = odd.encode("utf-8", "backslashreplace").decode()

    assert logs["silent"] == {}
    assert escaped in logs["rows"][0]["folder"]
    eventually(lambda: cluster.client.read("events", search=escaped)["count"])
    rows = cluster.client.read("nodes")["rows"]
    assert {(row["node"], row["state"], row["error"]) for row in rows} == {
        (name, "up", "") for name in ("hub", "east", "west")
    }


def test_a_stream_sends_any_text_of_its_own_node(cluster):
    cluster.hub.runtime.report(DashboardAction("\udce9", "x", "y", "z"))
    eventually(lambda: cluster.client.read("events", kind="DashboardAction")["count"])

    with stream(cluster.client, "view=events&kind=DashboardAction") as page:
        assert told(page)["whole"]["rows"]["order"]


@pytest.mark.slow
def test_a_node_closes_in_silence_though_it_is_asked(caplog):
    with Node("closes") as node, DashboardServer(node) as page:
        base, _, token = page.link.partition("?token=")
        place = ("127.0.0.1", int(base.rstrip("/").rpartition(":")[2]))
        asks = [f"api/v1/{view}" for view in ("stream", "nodes", "actors", "overview")]
        head = f"HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n\r\n"
        asking, page.collector.interval = [], 60.0  # so they wait for another round
        for path in asks:
            asking.append(socket.create_connection(place))
            asking[-1].sendall(f"GET /{path} {head}".encode())
            eventually(lambda: page.collector._watchers == len(asking))
            eventually(lambda: page.collector.rounds)
    gc.collect()  # tells of tasks that were left
    for each in asking:
        each.close()

    assert not page.collector.is_at_work
    assert [record.getMessage() for record in caplog.records] == []


@pytest.mark.parametrize("state", ["lost", "closed"])
def test_a_node_without_a_path_is_shown_at_once_as_lost_or_closed(state):
    with Cluster(actions=False) as cluster, stream(cluster.client, "view=nodes") as page:
        told(page)
        if state == "closed":
            cluster.east.close()
        else:
            cluster.hub.disconnect(cluster.east.node_id, 60.0)

        def is_shown():
            rows = told(page).get("patch", {}).get("rows", {}).get("rows", {})
            return any(row and row.get("state") == state for row in rows.values())

        eventually(is_shown)
        kinds = {alarm["kind"] for alarm in cluster.client.read("overview")["alarms"]}
        assert ("lost" in kinds) == (state == "lost")
        assert "closed" not in kinds


@pytest.mark.slow
def test_without_an_open_page_the_collector_does_not_run():
    def parts(node):
        """Count the subscribers, actors, links and timers of a node."""
        runtime = node.runtime
        timers = len(node.runner.timers)
        return len(runtime._subscribers), node.stats().actors, len(node.links()), timers

    def work(*nodes):
        """Count what nodes handled and sent to others."""
        sent = (row.sent for node in nodes for row in node.accounts().values())
        return sum(node.runtime.handled for node in nodes), sum(sent)

    with Node("quiet", dashboard=True) as node, Node("without") as other, Node("peer") as peer:
        peer.listen("127.0.0.1", 0)
        for each in (node, other):
            each.connect(peer.address)
        server = node._dashboard
        before = work(node, peer)
        with stream(Client(node.dashboard_url), "view=actors") as page:
            told(page)
            eventually(lambda: work(node, peer) != before)
            assert parts(node)[0] != parts(other)[0]
        eventually(lambda: not server.collector.is_at_work)

        eventually(lambda: parts(node) == parts(other))
        loop = server._server._loop
        eventually(lambda: not [each for each in loop._scheduled if not each.cancelled()])
        eventually(lambda: len(asyncio.all_tasks(loop)) == 2)  # one accepts, one awaits the end
        counted = work(node, other, peer)
        threading.Event().wait(1.5)  # longer than a round of a collector that is at work
        assert work(node, other, peer) == counted


def test_a_node_without_a_dashboard_answers_with_an_explanation():
    with Node() as node, pytest.raises(WrongValue, match="dashboard=True"):
        _ = node.dashboard_url


def test_a_public_address_requires_tls_or_explicit_consent():
    with Node(dashboard=True) as node:
        with pytest.raises(DashboardError, match="insecure"):
            DashboardServer(node, "0.0.0.0:0")
        with DashboardServer(node, "0.0.0.0:0", insecure=True) as server:
            assert Client(server.link).read("nodes")["rows"]
        with pytest.raises(DashboardError, match="HOST:PORT"):
            DashboardServer(node, "nowhere")
        with pytest.raises(DashboardError, match="free one"):
            DashboardServer(node, Client(node.dashboard_url).base.split("/")[2])


def test_a_cluster_that_starts_later_appears():
    with Node("page") as node, DashboardServer(node, shows_itself=False) as server:
        client = Client(server.link)
        assert client.read("nodes")["rows"] == []
        with Node("late") as late:
            late.listen("127.0.0.1", 0)
            node.connect(late.address)
            assert [row["node"] for row in client.read("nodes")["rows"]] == ["late"]


def test_the_app_can_be_mounted_behind_a_proxy_with_another_host(cluster):
    """As nginx does it without `proxy_set_header Host`, with a path that it passes whole."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.routing import Mount

    from callboard.dashboard import make_app
    from callboard.dashboard.guard import Guard

    guard = Guard(token="mine", hosts={"shop.example", "app:8000"})
    inner = Starlette(routes=[Mount("/window", make_app(cluster.hub, guard, actions=True))])
    app = Starlette(routes=[Mount("/shop", inner)])
    config = uvicorn.Config(app, port=0, log_config=None, lifespan="off", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        eventually(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        client = Client(f"http://127.0.0.1:{port}/shop/window/?token=mine")
        browser = {"Host": "app:8000", "Sec-Fetch-Site": "same-origin"}
        own = browser | {"Origin": "https://shop.example"}
        evil = browser | {"Origin": "https://evil.example"}
        assert client.ask("api/v1/nodes", **own)[0] == 200
        body = {"topic": "/cpu/mounted", "value": 1}
        assert client.ask("api/v1/actions/publish", "POST", body, **own)[0] == 200
        assert client.ask("api/v1/actions/publish", "POST", body, **evil)[0] == 403
        assert client.ask("static/app.js", **own)[0] == 200
        assert client.ask("", **own)[0] == 200
        assert client.ask("api/v1/nodes", **browser | {"Host": "evil.example"})[0] == 403
        assert client.ask("api/v1/nodes", Authorization="", **own)[0] == 401
    finally:
        server.should_exit = True
        thread.join()


def test_it_is_mounted_into_another_application(cluster):
    import asyncio

    from starlette.applications import Starlette
    from starlette.routing import Mount

    from callboard.dashboard import make_app
    from callboard.dashboard.guard import Guard

    guard = Guard(token="mine")
    app = Starlette(routes=[Mount("/window", make_app(cluster.hub, guard))])

    def ask(path, query=b"", cookie=b""):
        sent = []

        async def send(message):
            sent.append(message)

        async def receive():
            return {"type": "http.request", "body": b"", "more_body": False}

        headers = [(b"host", b"localhost"), (b"cookie", cookie)]
        scope = {"type": "http", "method": "GET", "path": path, "query_string": query}
        scope |= {"headers": headers, "scheme": "http", "http_version": "1.1"}
        asyncio.run(app(scope, receive, send))
        return sent[0]["status"], dict(sent[0]["headers"])

    status, headers = ask("/window/", b"token=mine")
    cookie = headers[b"set-cookie"]
    assert (status, headers[b"location"]) == (303, b"/window/")
    assert b"Path=/window" in cookie
    assert ask("/window/api/v1/nodes", cookie=cookie.partition(b";")[0])[0] == 200
    assert ask("/window/api/v1/nodes")[0] == 401
