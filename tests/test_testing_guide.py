"""The tests that the testing guide shows pass as they stand, in one file."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

pytest_plugins = ["pytester"]

GUIDE = Path(__file__).parents[1] / "docs" / "testing.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)


def test_the_tests_of_the_guide_pass(pytester: pytest.Pytester):
    pytester.makepyfile("\n".join(BLOCKS))

    result = pytester.runpytest_subprocess()

    result.assert_outcomes(passed=8, xfailed=2)


def test_the_chapter_on_a_lost_update_is_what_happens(pytester: pytest.Pytester, monkeypatch):
    page = (GUIDE.parent / "lost-update.md").read_text()
    till, *tests, mended = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (told,) = re.findall(r"^```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    printed = told[told.index("from callboard") :]
    pytester.makepyfile(till=till, test_till="\n".join(tests), test_printed=printed)
    monkeypatch.setenv("CALLBOARD_SEEDS", "100")

    failed = pytester.runpytest_subprocess("-p", "no:randomly")

    failed.assert_outcomes(passed=1, failed=2)  # the swarm finds it, and what it printed fails
    said = "\n".join(line[1:].strip() for line in failed.outlines if line.startswith("E"))
    for line in told[: told.index("seed ")].splitlines():
        assert line.strip() in said
    pytester.makepyfile(till=mended)
    pytester.runpytest_subprocess("-p", "no:randomly").assert_outcomes(passed=3)
