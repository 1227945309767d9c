import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from callboard.demo.outcome import Balance
from callboard.demo.run import Show
from callboard.demo.scene import Scene
from callboard.demo.screen import PlainScreen, event_line, status_line
from callboard.demo.story import describe
from callboard.demo.view import amount, figures, journey, line_of_nodes, sparkline, store

SECOND = 1_000_000_000

SUBJECT = {
    "history": [1.0, 2.0],
    "mean": 1.5,
    "p95": 2.0,
    "max": 2.0,
    "parts": {"core 0": 2.0},
}


def report(at=SECOND, notes=(), *, reach=None, links=None, accounts=(), **fields):
    return {
        "at": at,
        "round": 0,
        "notes": list(notes),
        "nodes": [{"name": name, "hops": hops} for name, hops in (reach or {}).items()],
        "links": [
            {"peer_name": name, "frames_sent": count, "frames_received": 0}
            for name, count in (links or {}).items()
        ],
        "accounts": list(accounts),
        "topics": {"peers": 0, "published": 0, "received": 0},
        "passages": [],
        "snapshot": None,
        "store": None,
        "mqtt": None,
        **fields,
    }


@pytest.fixture
def scene():
    scene = Scene("ABCD")
    for name in "ABCD":
        scene.started(name, 1, 0, again=False)
        scene.report(name, report(ready=name.lower() * 4))
    scene.report("A", report(reach={"B": 1, "C": 2, "D": 3}))
    return scene


def test_a_node_is_starting_until_it_reports_and_up_when_a_reaches_it():
    scene = Scene("ABCD")
    scene.started("B", 1, 0, again=False)
    assert scene.nodes["B"].state == "starting"

    scene.report("B", report())
    scene.report("A", report(reach={"B": 1}))

    assert scene.nodes["B"].state == "up"


def test_nodes_that_a_cannot_reach_are_shown_as_such(scene):
    scene.report("A", report(reach={"B": 1}))

    assert [view.state for view in scene.nodes.values()] == [
        "up",
        "up",
        "unreachable",
        "unreachable",
    ]


def test_blows_show_at_once(scene):
    scene.struck(scene.chronicle.strike("kill", "C", SECOND))
    scene.struck(scene.chronicle.strike("freeze", "B", SECOND))
    assert (scene.nodes["C"].state, scene.nodes["B"].state) == ("dead", "frozen")

    scene.struck(scene.chronicle.strike("thaw", "B", SECOND))
    scene.started("C", 2, 2 * SECOND, again=True)

    assert (scene.nodes["C"].state, scene.nodes["B"].state) == ("starting", "up")


def test_a_link_is_up_when_both_ends_say_so(scene):
    scene.report("A", report(links={"B": 5}))
    assert not scene.link_is_up("A", "B")

    scene.report("B", report(links={"A": 5}))
    assert scene.link_is_up("A", "B")

    scene.struck(scene.chronicle.strike("kill", "B", SECOND))
    assert not scene.link_is_up("A", "B")


def test_the_line_stands_when_readings_of_both_ends_arrived(scene):
    scene.report("A", report(notes=[{"kind": "spawned", "at": SECOND, "host": "C"}]))
    only_a = {"sensors": {"A.cpu": {"received": 1, "missed": 0}}}
    scene.report("C", report(snapshot=only_a))
    assert not scene.stands()

    both = {**only_a["sensors"], "D.cpu": {"received": 1, "missed": 0}}
    scene.report("C", report(snapshot={"sensors": both}))
    assert scene.stands()


def test_only_nodes_that_are_alive_count_in_the_balance(scene):
    account = {"sent": 5, "confirmed": 4, "lost": 1, "in_flight": 0}
    other = {"sent": 5, "confirmed": 5, "lost": 0, "in_flight": 0}
    scene.report("A", report(accounts=[account, other]))
    scene.report("C", report(accounts=[account, other]))
    scene.struck(scene.chronicle.strike("kill", "C", SECOND))

    assert scene.balance() == Balance(10, 9, 1, 0)


def test_notes_of_one_kind_become_one_line_in_the_order_of_time(scene):
    scene.struck(scene.chronicle.strike("kill", "C", SECOND))
    notes = [
        {"kind": "spawned", "at": SECOND + 4_000_000, "host": "B"},
        {
            "kind": "sensor_down",
            "at": SECOND + 2_000_000,
            "sensor": "D.cpu",
            "reason": "unreachable",
        },
        {
            "kind": "sensor_down",
            "at": SECOND + 3_000_000,
            "sensor": "D.disk",
            "reason": "unreachable",
        },
    ]

    events = scene.report("A", report(notes=notes))

    assert [event.text for event in events] == [
        "overseer on A: sensors on D down: unreachable (2 actors)",
        "overseer on A: aggregator spawned on B",
    ]
    assert [event.since_ms for event in events] == [2.0, 4.0]


def test_a_followed_reading_is_put_together_from_two_nodes(scene):
    scene.report("B", report(passages=[["aaaa", 3, 1050_000]]))
    answered = {
        "kind": "answered",
        "at": SECOND,
        "host": "cccc",
        "message_id": 3,
        "number": 10,
        "sent_ns": 1000_000,
        "handled_ns": 1080_000,
        "answered_ns": 1150_000,
    }
    assert scene.report("A", report(notes=[answered])) == []

    assert scene.follower.last.line() == "A 0 µs → B 50 µs → C 80 µs → A 150 µs"
    assert "B 50 µs" in journey(scene).plain


def test_reasons_name_nodes_instead_of_their_ids(scene):
    lost = {"kind": "LinkDown", "at": SECOND, "name": "C", "reason": "node cccc is silent"}

    (event,) = scene.report("B", report(notes=[lost]))

    assert event.text == "B lost its link to C: node C is silent"


def test_each_thing_is_told_by_one_node():
    up = {"kind": "NodeUp", "name": "C", "hops": 2}
    assert describe("A", up) == ("A reaches C, hops: 2", "good")
    assert describe("B", up) is None
    assert describe("B", {"kind": "LinkUp", "name": "A"}) is None
    assert describe("A", {"kind": "answered"}) is None


def test_plain_lines_hold_no_control_characters(scene):
    out = io.StringIO()
    screen = PlainScreen(out)
    screen.open(200.0)
    event = scene.struck(scene.chronicle.strike("kill", "C", SECOND))
    screen.event(event, 15.0)
    screen.draw(scene, 16.0, "prompt")
    screen.close()

    first, second, third = out.getvalue().splitlines()
    assert first.endswith("first picture 200 ms after the start")
    assert second == event_line(event, 15.0)
    assert second.split() == ["15.000", "s", "+0.0", "ms", "C", "is", "killed", "(SIGKILL)"]
    assert third == status_line(scene, 16.0)
    assert "A:up B:up C:dead D:up" in third
    assert all(character.isprintable() for character in first + second + third)


@pytest.mark.parametrize("width", [80, 140])
def test_the_picture_shows_nodes_links_and_figures(scene, width):
    scene.report("A", report(notes=[{"kind": "spawned", "at": SECOND, "host": "C"}]))
    scene.report("C", report(snapshot={"subjects": {"cpu": SUBJECT}, "sensors": {}}))
    scene.struck(scene.chronicle.strike("kill", "B", SECOND))
    console = Console(width=width, record=True, file=io.StringIO())

    console.print(line_of_nodes(scene))
    console.print(figures(scene))

    text = console.export_text()
    for shown in ("● A", "✗ B", "AGGREGATOR", "5 sensors", "✂", "cpu", "core 0 2 %"):
        assert shown in text
    assert max(map(len, text.splitlines())) <= width


def test_the_picture_shows_what_the_store_holds(scene):
    shown = {"A.cpu latest": 12.0, "A.cpu peak": 97.0}
    clone = {"role": "clone", "parted": False, "life": "A-1", "written": 9, "acknowledged": 8}
    kept = {"role": "master", "parted": False, "entries": 3, "kept": {"A-1": 8}}
    assert "clone on A, now / peak of 60 s: …" in store(scene).plain

    scene.report("A", report(store={**clone, "shown": {"A.cpu latest": 12.0}}))
    assert "clone on A, now / peak of 60 s: …" in store(scene).plain
    scene.report("A", report(store={**clone, "shown": shown}))
    scene.report("C", report(store=kept))

    assert store(scene).plain == (
        " store: master on C · 3 entries · 8 writes acknowledged, 1 waiting\n"
        " clone on A, now / peak of 60 s: cpu 12 % / 97 %"
    )
    assert "store: master on C" in status_line(scene, 1.0)
    scene.struck(scene.chronicle.strike("kill", "C", 2 * SECOND))
    assert "master away, clones keep writes" in store(scene).plain


def test_sparklines_reach_from_the_lowest_bar_to_the_highest():
    assert sparkline([0.0, 50.0, 100.0], 100.0) == "▁▅█"
    assert sparkline([5.0, 10.0]) == "▅█"
    assert sparkline([0.0]) == "▁"
    assert sparkline([]) == ""


@pytest.mark.parametrize(
    ("subject", "value", "text"),
    [
        ("cpu", 12.4, "12 %"),
        ("disk", 0.0, "0 B/s"),
        ("disk", 1234.0, "1.2 kB/s"),
        ("network", 45_000_000.0, "45 MB/s"),
        ("network", 2.5e9, "2.5 GB/s"),
    ],
)
def test_amounts_carry_their_unit(subject, value, text):
    assert amount(subject, value) == text


def test_peers_topics_and_their_rates_are_shown(scene):
    scene.report("A", report(notes=[{"kind": "spawned", "at": SECOND, "host": "C"}]))
    for second in range(2, 12):
        flow = {"peers": 2, "published": 0, "received": 20 * second, "dropped": 0}
        sensors = {f"{node}.cpu": {"received": 10 * second, "missed": 0} for node in ("A", "D")}
        snapshot = {"sensors": sensors, "subjects": {"cpu": SUBJECT}}
        scene.report("C", report(second * SECOND, topics=flow, snapshot=snapshot))

    assert scene.topics() == {"/metrics/A/cpu": 110, "/metrics/D/cpu": 110}
    assert scene.topics_rate() == pytest.approx(20, rel=0.01)
    assert "2 topics 20 msg/s" in status_line(scene, 1.0)
    console = Console(width=160, file=io.StringIO())
    console.print(line_of_nodes(scene), figures(scene))
    shown = console.file.getvalue()
    assert "2 peers ↑0 ↓20 msg/s" in shown
    assert "A 10 D 10" in shown


def test_another_aggregator_counts_its_topics_from_the_start(scene):
    scene.report("A", report(notes=[{"kind": "spawned", "at": SECOND, "host": "C"}]))
    sensors = {"A.cpu": {"received": 7, "missed": 0}}
    scene.report("C", report(snapshot={"sensors": sensors}))

    scene.report("A", report(notes=[{"kind": "spawned", "at": 2 * SECOND, "host": "B"}]))

    assert scene.topics() == {}
    assert scene.topics_rate() == 0.0


@pytest.mark.parametrize(
    ("views", "has_reported"),
    [
        ([(True, True, 3), (True, True, 4)], True),
        ([(True, True, 3), (True, True, 2)], False),
        ([(True, True, 3), (True, False, 3)], False),
        ([(True, True, 3), (False, False, 0)], True),
    ],
)
def test_a_round_is_over_when_every_living_node_has_reported_for_it(views, has_reported):
    names = ("is_alive", "has_reported", "round")
    nodes = {
        n: SimpleNamespace(**dict(zip(names, view, strict=True)))
        for n, view in enumerate(views)
    }
    show = SimpleNamespace(scene=SimpleNamespace(nodes=nodes))

    assert Show._has_reported(show, 3) is has_reported
