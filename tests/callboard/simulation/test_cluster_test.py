"""Many seeds of one test: what is drawn, what is found, what is printed and kept."""

import random
import re
import sys
import warnings
from itertools import count

import pytest

from callboard.simulation import (
    AlwaysBroken,
    Cluster,
    Fault,
    FaultKind,
    NeverHappened,
    NotDeterministic,
    cluster_test,
    crash,
    delay,
    full_disk,
    kill,
    one_way,
    partition,
    pause,
    swarm,
)
from callboard.simulation.cluster_test import ClusterTest, enough
from callboard.simulation.current_run import always, marks_in
from callboard.simulation.faults import KINDS, FaultInjector
from callboard.simulation.runs.shrinking import shrink
from callboard.simulation.runs.tries import Tries

pytest_plugins = ["pytester"]

LEFT = count()

FAILING = """
    from callboard import Actor, handler
    from callboard.simulation import cluster_test, crash, partition, swarm, sometimes

    class Quiet(Actor):
        @handler
        def on_text(self, msg: str) -> str:
            return msg

    @cluster_test(seeds=30, faults=swarm(crash, partition, span=5.0))
    def test_nobody_is_lost(cluster, tmp_path):
        a, b = cluster(2)
        down = a.monitor(a.ref(str(b.spawn(Quiet))))
        cluster.advance(12.0)
        sometimes(tmp_path.exists(), "there is a folder")
        assert not down.done()

    @cluster_test(seeds=2)
    def test_marks(cluster):
        sometimes(cluster.now > 5, "it is late")
        sometimes(True, "it is early")
"""


@pytest.mark.slow
def test_a_failure_is_small_replayed_and_kept(pytester: pytest.Pytester, monkeypatch):
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")  # no forks of the suite's own processes
    pytester.makepyfile(test_it=FAILING)

    failed = pytester.runpytest("-p", "no:randomly", "-k", "nobody")

    failed.assert_outcomes(failed=1)
    text = failed.stdout.str()
    (seed,) = set(re.findall(r"callboard replay (\d+)", text))
    drawn = re.findall(r"(?:crash|partition)\((?:\d, )+at=[\d.]+, lasts=[\d.]+\)", text)
    assert len(set(drawn)) == 1  # the note stands in the summary as well, in CI
    assert f"def test_seed_{seed}(cluster, tmp_path):" in text
    assert "test_it.test_nobody_is_lost.scenario(cluster, tmp_path=tmp_path)" in text
    (kept,) = (pytester.path / ".callboard" / "seeds").iterdir()
    assert kept.read_text().splitlines()[1:] == [seed]
    program = text[text.index("E       from callboard.simulation import cluster_test") :]
    lines = [line[8:] for line in program.splitlines() if line.startswith("E")]
    pytester.makepyfile(test_kept="\n".join(lines))
    pytester.runpytest("test_kept.py", "-k", "seed").assert_outcomes(failed=1)
    one = pytester.runpytest(f"--callboard-seed={seed}", "-k", "nobody")
    one.assert_outcomes(failed=1)


def test_marks_that_no_seed_came_to_are_named(pytester: pytest.Pytester):
    pytester.makepyfile(test_it=FAILING)

    result = pytester.runpytest("-k", "marks")

    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["*NeverHappened: *test_marks: 2 seeds never reached 'it is late'"]
    )


def lived(scenario, name="here", **options):
    return ClusterTest(scenario, options.pop("seeds", 5), options.pop("faults", ()), twice=True)


def test_a_scenario_that_depends_on_more_than_its_seed_is_found():
    chance = random.Random(3)

    def careless(cluster):
        cluster(2)
        cluster.trace.note(cluster.now, "test", chance.random())

    with pytest.raises(NotDeterministic, match=r"differ at event .* more than the seed"):
        lived(careless).run("careless", {})


def test_a_failure_that_does_not_come_again_is_told():
    lives = iter([False, True, True])

    def once(cluster):
        assert next(lives)

    with pytest.raises(NotDeterministic, match="passed when it was repeated"):
        lived(once).run("once", {})


@pytest.mark.parametrize(("variable", "count"), [("CALLBOARD_SEEDS", 3), (None, 5)])
def test_the_environment_says_how_many_seeds(monkeypatch, variable, count):
    if variable:
        monkeypatch.setenv(variable, str(count))
    seeds = []
    test = ClusterTest(lambda cluster: seeds.append(cluster.seed), 5, (), twice=False)

    test.run("x", {})
    first = list(seeds)
    test.run("x", {})

    assert len(set(first)) == count
    assert seeds == first * 2
    monkeypatch.setenv("CALLBOARD_NEW_SEEDS", "1")
    test.run("x", {})
    assert not set(seeds[2 * count :]) & set(first)
    monkeypatch.setenv("CALLBOARD_SECONDS", "0")
    test.run("x", {})
    assert len(seeds) == 3 * count + 1  # one is lived in any case


def test_the_same_seed_draws_the_same_faults_and_others_others():
    drawn = [swarm().draw(seed) for seed in range(80)]

    assert drawn == [swarm().draw(seed) for seed in range(80)]
    assert {fault.kind for faults in drawn for fault in faults} == set(KINDS)
    assert any(not faults for faults in drawn)
    assert len({tuple(map(str, faults)) for faults in drawn}) > 30
    for faults in drawn:
        assert [fault.at for fault in faults] == sorted(fault.at for fault in faults)
        assert all(0 <= fault.at <= 20 and 0 < fault.lasts <= 10 for fault in faults)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_each_kind_begins_and_ends_and_its_text_makes_it_again(kind):
    fault = kind.draw(random.Random(1), 3, 4.0)
    names = {each.name: each for each in KINDS}
    assert eval(str(fault), names) == fault

    cluster = Cluster(7)
    try:
        FaultInjector(cluster, [fault])
        nodes = cluster(3, topology="mesh")
        restarted = []
        cluster.restarted = restarted.append
        cluster.advance(fault.at + fault.lasts + 0.1)
        if kind in (kill, crash):
            (node,) = restarted
            assert node in cluster.machines()
            assert node not in nodes
        cluster.advance(10.0)
        assert all(map(cluster.is_running, cluster.machines()))
        machines = cluster.machines()
        for one in machines:
            for other in machines:
                way = cluster.network.way(cluster._hosts[one], cluster._hosts[other])
                assert (way.is_cut, way.loss, way.bytes_per_second) == (False, 0.0, 0)
                assert way.delay == 0.0005
            assert cluster.disk(one).room() is None
    finally:
        cluster.close()


@pytest.mark.parametrize(
    "call",
    [
        lambda: partition(0),
        lambda: crash(0, 1),
        lambda: delay(0, 1),
        lambda: delay(0, 1, part=0.1),
        lambda: pause(0, seconds=1),
    ],
)
def test_a_fault_of_another_form_says_what_is_right(call):
    with pytest.raises(ValueError, match=r"is called as \w+\(i"):
        call()


def test_of_two_partitions_the_later_end_counts():
    cluster = Cluster(7)
    try:
        FaultInjector(cluster, [partition(0, 1, at=1, lasts=5), one_way(1, 0, at=2, lasts=1)])
        a, b = cluster(2)
        way = cluster.network.way(cluster._hosts[a], cluster._hosts[b])
        cluster.run_until(lambda: cluster.now >= 4, 5)
        assert way.is_cut
        cluster.run_until(lambda: cluster.now >= 7, 5)
        assert not way.is_cut
    finally:
        cluster.close()


def test_without_a_way_to_start_it_again_the_last_node_stays():
    cluster = Cluster(7)
    try:
        FaultInjector(cluster, [kill(0, at=1), crash(1, at=2), kill(2, at=3), crash(3, at=4)])
        cluster(3)
        cluster.advance(10)
        assert sum(map(cluster.is_running, cluster.machines())) == 1
    finally:
        cluster.close()


def test_a_full_disk_takes_nothing_and_then_again():
    cluster = Cluster(7)
    try:
        FaultInjector(cluster, [full_disk(0, at=1, lasts=2)])
        (node,) = cluster(1)
        disk = cluster.disk(node)
        file = disk.open("a", append=True)
        file.write(b"12345")
        assert disk.used == 5
        cluster.run_until(lambda: cluster.now >= 2, 5)
        with pytest.raises(OSError, match="No space left"):
            file.write(b"6")
        cluster.run_until(lambda: cluster.now >= 4, 5)
        file.write(b"6")
    finally:
        cluster.close()


def test_shrinking_keeps_what_is_needed():
    faults = [kind.draw(random.Random(i), 3, 20.0) for i, kind in enumerate(KINDS * 3)]
    needed = {faults[5].kind, faults[-1].kind}

    small = shrink(faults, [], lambda tried, _: needed <= {each.kind for each in tried})[0]

    assert {each.kind for each in small} == needed
    assert len(small) == 2
    assert all(each.at == float(f"{each.at:.2g}") for each in small)
    assert shrink(faults, [1], lambda tried, steps: False) == (faults, [1])
    assert shrink(faults, [1, 2], lambda tried, steps: True) == ([], [])


def test_halves_of_faults_and_steps_are_left_out_before_single_ones():
    faults, sizes = [crash(place, at=1.0) for place in range(12)], []

    def fails(tried, steps):
        sizes.append((len(tried), len(steps)))
        return len(tried) >= 1 and 30 in steps

    assert shrink(faults, list(range(40)), fails) == ([crash(11, at=1.0)], [30])
    assert (1, 1) in sizes[:25]


def test_a_run_that_shrinking_asks_for_again_is_lived_once():
    lived, over = [], []
    tries = Tries(lambda *tried: lived.append(tried) or len(tried[1]) > 1, over.__contains__)
    assert tries.fails([], [1, 2])
    assert tries.fails([], [1, 2])
    assert not tries.fails([], [1])
    assert len(lived) == 2
    over.append(2)  # the parts of the smallest one
    assert tries.fails([], [1, 2])
    assert not tries.fails([], [1, 2, 3])
    assert len(lived) == 2


def test_runs_that_take_long_are_lived_ahead_in_children(monkeypatch):
    monkeypatch.setattr(sys.modules[Tries.__module__], "processors", lambda: 2)
    monkeypatch.setattr(sys.modules[Tries.__module__], "_WORTH", 0.0)
    lived = []
    tries = Tries(lambda *tried: lived.append(tried) or len(tried[1]) > 1, lambda _: False)
    assert tries.fails([], [1, 2, 3])

    tries.ahead([([], [1, 2]), ([], [1]), ([], [3])])

    assert lived == [([], [1, 2, 3]), ([], [1, 2])]  # the other one was a child's
    assert tries.fails([], [1, 2])
    assert not tries.fails([], [1])
    assert len(lived) == 2


def test_always_fails_at_once():
    always(1 < 2, "numbers are in order")
    with pytest.raises(AlwaysBroken, match="does not hold that numbers are in order"):
        always(2 < 1, "numbers are in order")


def test_marks_are_read_from_a_source():
    source = """
from callboard import simulation
sometimes(a > b, "one")
simulation.sometimes(condition=True, what="two")
if x:
    reachable("three")
other("four")
sometimes(a, variable)
def test_here():
    reachable("five")
def test_there():
    reachable("six")
"""
    assert marks_in(source, "test_here") == {"one", "two", "three", "five"}


def test_no_mark_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error", NeverHappened)
        lived(lambda cluster: None).run("quiet", {})


def test_a_fault_is_a_value():
    assert Fault(crash, (0,), 1.0, 2.0) == crash(0, at=1.0, lasts=2.0)
    assert callable(cluster_test(seeds=1))


#: A kind of fault that only this module has.
price_changes = FaultKind("price_changes", unit="cents", least=1.0, most=500.0)


def fails_when_prices_fall(cluster):
    """Fail with a fault of an own kind."""
    told = []
    cluster.on_fault = lambda fault, nodes, begins: told.append((fault, nodes, begins))
    cluster.advance(20.0)
    for fault, nodes, begins in told:
        assert (fault.kind, nodes, begins) == (price_changes, [], True)
        assert fault.amount < 50.0


def test_a_kind_of_ones_own_is_drawn_and_printed():
    faults = swarm(price_changes)
    test = ClusterTest(fails_when_prices_fall, 20, faults, twice=False)

    run = test.run("prices", {})

    program = run.program(fails_when_prices_fall)
    assert len(run.smallest) == 1
    assert f"from {__name__} import price_changes\n" in program
    assert "from callboard.simulation import cluster_test\n" in program
    there = {}
    exec(compile(program, "printed.py", "exec"), there)
    kept = there[f"test_seed_{run.seed}"].test
    assert kept.live(run.seed, kept.faults, {}).error is not None


@pytest.mark.slow
def test_pytest_shows_the_log_of_the_last_run_only(pytester):
    pytester.makepyfile(
        """
        import logging
        from callboard.simulation import cluster_test, schedule_test

        @cluster_test(seeds=20)
        def test_seeds(cluster):
            logging.warning("in a run of seed")
            cluster(1)
            assert [number for number, _ in cluster.steps(9)] == []

        @schedule_test
        def test_orders(cluster):
            logging.warning("in a run of orders")
            assert not cluster(1)

        @cluster_test(seeds=3)
        def test_that_looks_itself(cluster, caplog):
            logging.warning("mine")
            assert "mine" in caplog.text
        """
    )

    done = pytester.runpytest_subprocess("-p", "no:randomly")

    done.assert_outcomes(passed=1, failed=2)
    for text in ("in a run of seed", "in a run of orders"):
        assert sum(text in line and "WARNING" in line for line in done.outlines) == 1


@pytest.mark.parametrize(
    ("parts", "took", "worked", "is_enough"),
    [
        (5, 19.0, 19.0, False),
        (5, 21.0, 20.5, True),
        (5, 39.0, 6.0, False),  # others have the processor
        (5, 41.0, 6.0, True),
        (26, 59.0, 59.0, False),
        (26, 61.0, 60.5, True),
        (26, 121.0, 6.0, True),
    ],
)
def test_a_failure_is_made_small_for_seconds_of_a_processor(parts, took, worked, is_enough):
    assert enough(parts, took, worked) is is_enough
