"""The tests that the testing guide shows pass as they stand, in one file."""

import re
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

GUIDE = Path(__file__).parents[1] / "docs" / "testing.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)


def test_the_tests_of_the_guide_pass(pytester: pytest.Pytester):
    pytester.makepyfile("\n".join(BLOCKS))

    result = pytester.runpytest_subprocess()

    result.assert_outcomes(passed=4)
