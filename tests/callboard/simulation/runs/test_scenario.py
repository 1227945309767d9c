"""What becomes a simulated test and what is refused; what is printed of it; how it skips."""

import re

import pytest

from callboard.actors.errors import CallboardError, WrongArgument, WrongValue
from callboard.simulation import cluster_test, crash, delay, explore, schedule_test, swarm

pytest_plugins = ["pytester"]


def plain(cluster):
    """Be what both decorators take."""


async def waits(cluster):
    """Be what neither takes."""


def yields(cluster):
    yield cluster


def nothing():
    """Take no cluster."""


class Tests:
    def nothing(self):
        """Take no cluster."""


@pytest.mark.parametrize("decorator", [cluster_test, schedule_test])
@pytest.mark.parametrize(
    ("function", "told"),
    [
        (waits, "waits is `async def`: remove `async`; .*handlers of actors"),
        (yields, "yields has a `yield`"),
        (nothing, r"write `def nothing\(cluster\):`"),
        (Tests.nothing, r"write `def nothing\(self, cluster\):`"),
        (Tests, "takes a function or method of a cluster, not <class"),
        (7, "takes a function or method of a cluster, not 7"),
    ],
)
def test_what_is_no_function_of_a_cluster_is_refused(decorator, function, told):
    with pytest.raises(WrongArgument, match=f"@{decorator.__name__}.*{told}"):
        decorator()(function)


@pytest.mark.parametrize(
    ("options", "kind", "told"),
    [
        ({"seeds": 0}, WrongValue, "seeds=0: a test needs at least one seed"),
        ({"seeds": -5}, WrongValue, "seeds=-5: a test needs at least one seed"),
        ({"seeds": []}, WrongValue, "a test needs at least one seed"),
        ({"seeds": [3, -1]}, WrongValue, "-1 is negative"),
        ({"seeds": "12"}, WrongArgument, "or a list of them, not '12'"),
        ({"seeds": 2.0}, WrongArgument, "or a list of them, not 2.0"),
        ({"seeds": True}, WrongArgument, "or a list of them, not True"),
        ({"seeds": [1, "2"]}, WrongArgument, "of whole numbers, not '2'"),
        ({"steps": 3}, WrongArgument, "steps= takes a list of numbers of steps, not 3"),
        ({"faults": swarm}, WrongArgument, r"faults=swarm\(\)"),
        ({"faults": crash}, WrongArgument, r"call it, crash\(0, at=2\), .* swarm\(crash\)"),
        ({"faults": [delay]}, WrongArgument, r"call it, delay\(0, 1, at=2, seconds=…\)"),
        ({"faults": crash(0)}, WrongArgument, r"faults=\[crash\(0, at=0, lasts=1\)\]"),
        ({"faults": "crash"}, WrongArgument, "not 'crash'"),
        ({"faults": ["crash"]}, WrongArgument, "not 'crash'"),
        ({"faults": None}, WrongArgument, "not None"),
    ],
)
def test_options_of_cluster_test_that_cannot_be_meant_are_refused(options, kind, told):
    with pytest.raises(kind, match=told) as refused:
        cluster_test(**options)(plain)

    assert isinstance(refused.value, CallboardError)


@pytest.mark.parametrize(
    ("options", "kind", "told"),
    [
        ({"deviations": -1}, WrongValue, "deviations= takes a whole number of at least 0"),
        ({"walks": 1.5}, WrongArgument, "walks= takes a whole number"),
        ({"late": -0.5}, WrongValue, "late= takes seconds of at least 0, not -0.5"),
        ({"seconds": "9"}, WrongArgument, "seconds= takes seconds, not '9'"),
        ({"faults": crash}, WrongArgument, r"call it, crash\(0, at=2\)$"),
        ({"faults": swarm()}, WrongArgument, r"such as \[crash\(0, at=2\)\], not "),
        ({"faults": 3}, WrongArgument, r"such as \[crash\(0, at=2\)\], not 3"),
    ],
)
def test_options_of_searches_that_cannot_be_meant_are_refused(options, kind, told):
    with pytest.raises(kind, match=told):
        schedule_test(**options)(plain)
    with pytest.raises(kind, match=told):
        explore(plain, **options)


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"seed": -1}, WrongValue),
        ({"seed": "1"}, WrongArgument),
        ({"schedule": 3}, WrongArgument),
        ({"schedule": [1, 2]}, WrongArgument),
        ({"schedule": [("a", 1)]}, WrongArgument),
    ],
)
def test_a_seed_or_schedule_of_another_form_is_refused(options, kind):
    with pytest.raises(kind):
        schedule_test(**options)(plain)


def test_who_calls_a_test_by_hand_is_told_of_its_function():
    with pytest.raises(WrongArgument, match=r"plain.scenario is the function"):
        cluster_test(seeds=1)(plain)()


METHODS = """
    import unittest
    import pytest
    from callboard.simulation import cluster_test, reachable, schedule_test

    class TestShop:
        def setup_method(self):
            self.lives = []

        def setup_class(cls):
            cls.seeds = set()

        @cluster_test(seeds=9)
        def test_seeds(self, cluster, tmp_path):
            self.is_fresh = not hasattr(self, "lived")
            self.lived = cluster.seed
            assert self.is_fresh and self.lives == [] and tmp_path.exists()
            reachable("shop")

        @schedule_test(walks=3)
        def test_orders(self, cluster):
            cluster(1)
            assert not hasattr(self, "lived")
            self.lived = True

        @cluster_test(seeds=1)
        def test_no_self(cluster):
            pass

        @staticmethod
        @cluster_test(seeds=1)
        def test_static(cluster, request):
            assert request.node.name == "test_static"

    class Old(unittest.TestCase):
        @cluster_test(seeds=1)
        def test_old(self, cluster):
            pass
"""


def test_methods_of_classes_are_tests(pytester: pytest.Pytester):
    pytester.makepyfile(METHODS)

    result = pytester.runpytest("-p", "no:randomly")

    result.assert_outcomes(passed=3, failed=2)
    result.stdout.fnmatch_lines(
        [
            "*WrongArgument: @cluster_test: test_no_self is a method; write "
            "`def test_no_self(self, cluster):`",
            "*WrongArgument: *Methods of unittest.TestCase get no fixtures*",
        ]
    )


SKIPPING = """
    import unittest
    import pytest
    from callboard.simulation import cluster_test, delay, schedule_test, swarm

    @cluster_test(seeds=2)
    def test_seeds(cluster):
        pytest.skip("no database here")

    @cluster_test(seeds=40)
    def test_late(cluster):
        if cluster.seed % 8 == 0:
            raise unittest.SkipTest("no database there")

    @schedule_test
    def test_orders(cluster):
        pytest.skip("no database anywhere")

    @cluster_test(seeds=2)
    def test_fails(cluster):
        pytest.fail("it is broken")

    @cluster_test(seeds=2)
    def test_expected(cluster):
        pytest.xfail("known")

    @cluster_test(seeds=[1], faults=[delay(0, 1, seconds=1.0)])
    def test_skips_without_its_fault(cluster):
        a, b = cluster(2)
        if not cluster.trace.lines()[-1].count("delay"):
            cluster.advance(1.0)
        if not any(" delay " in line for line in cluster.trace.lines()):
            pytest.skip("nothing went wrong")
        assert False
"""


@pytest.mark.parametrize("processes", [1, 2])
def test_a_test_that_skips_is_skipped(pytester, monkeypatch, processes):
    if processes == 1:
        monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")  # no forks
    else:
        monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    pytester.makepyfile(SKIPPING)

    result = pytester.runpytest("-p", "no:randomly", "-rs")

    result.assert_outcomes(skipped=3, failed=2, xfailed=1)
    for where in ("here", "there", "anywhere"):
        result.stdout.fnmatch_lines([f"SKIPPED*no database {where}"])
    result.stdout.fnmatch_lines(["*it is broken", "*this test reproduces the failure:*"])


PRINTED = """
    import enum
    from dataclasses import dataclass
    import pytest
    from callboard import Actor, handler
    from callboard.simulation import Cluster, cluster_test, delay, schedule_test

    class Size(enum.Enum):
        BIG = 1

    @dataclass
    class Price:
        cents: int
        size: Size | None = None

    def halved(number): return number // 2

    TWICE = lambda number: 2 * number

    @pytest.fixture
    def till(drawer):
        return drawer + 1

    @pytest.fixture(name="drawer")
    def _drawer():
        return 1

    @pytest.mark.parametrize("price", [Price(1), Price(7)])
    @pytest.mark.parametrize(("size", "text"), [(Size.BIG, "it's")])
    @pytest.mark.parametrize("change", [halved])
    @pytest.mark.parametrize("again", [TWICE, pytest.param(lambda number: number, id="same")])
    @cluster_test(seeds=[3])
    def test_prices(cluster, till, price, size, text, change, again):
        assert till == 2 and size is Size.BIG and text == "it's" and change(4) == 2
        assert price.cents < 7 or again(1) == 2

    class TestShop:
        @pytest.fixture
        def shelf(self):
            return 5

        def setup_method(self):
            self.is_open = True

        def test_another(self):
            pass

        @pytest.mark.parametrize("count", [4, 5])
        @cluster_test(seeds=[3], faults=[delay(0, 1, at=1, seconds=0.5)])
        def test_shelf(self, cluster, shelf, count):
            assert self.is_open
            assert shelf != count

        @pytest.mark.parametrize("count", [4, 5])
        @schedule_test
        def test_orders(self, cluster, count):
            cluster(1)
            assert self.is_open and count == 4
"""


def printed(text: str) -> list[str]:
    """Return the programs in pytest's output, each once."""
    found = []
    for part in text.split("this test reproduces the failure:")[1:]:
        lines = part.split("\n")[1:]
        end = next(i for i, line in enumerate(lines) if not line.startswith("E"))
        found.append("\n".join(line[4:] for line in lines[:end]))
    return found


@pytest.mark.slow
def test_printed_tests_run_as_they_are(pytester: pytest.Pytester, monkeypatch):
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    monkeypatch.delenv("CI", raising=False)  # there pytest's summary prints each program again
    pytester.makepyfile(test_shop=PRINTED)
    failed = pytester.runpytest("-p", "no:randomly", "--tb=short")
    failed.assert_outcomes(passed=6, failed=3)
    programs = printed(failed.stdout.str())
    assert len(programs) == 3
    prices = programs[0]
    assert "\nfrom test_shop import _drawer, till\n" in prices
    for argument in (
        *("till=till", "price=test_shop.Price(cents=7, size=None)", "size=test_shop.Size.BIG"),
        *('text="it\'s"', "change=test_shop.halved"),
        "again=test_shop.test_prices.pytestmark[0].args[1][1].values[0]",
    ):
        assert argument in prices
    assert re.search(r"class TestSeed3\(test_shop.TestShop\):\n +test_another = ", programs[1])
    for number, program in enumerate(programs):
        pytester.makepyfile(**{f"test_kept_{number}": program})
        kept = pytester.runpytest(f"test_kept_{number}.py")
        kept.assert_outcomes(failed=1)
        assert "AssertionError" in kept.stdout.str() or "assert " in kept.stdout.str()
