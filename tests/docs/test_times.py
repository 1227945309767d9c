"""The README, the walk through the code and the changelog state the times of the Makefile."""

import re

import pytest

from tests.docs.prose import ROOT


@pytest.mark.parametrize("target", ["test", "test-all"])
def test_a_page_states_the_minutes_that_the_makefile_states(target):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (minutes,) = re.findall(rf"^{target}: .*\(about (\d+) minutes\)$", makefile, re.MULTILINE)

    for page in ("README.md", "CHANGELOG.md", "docs/how-it-is-built.md"):
        text = re.sub(r"\s+", " ", (ROOT / page).read_text(encoding="utf-8"))
        stated = re.findall(rf"make {target}\b`?[^`]*?\babout (\d+)", text)
        assert stated, page
        assert set(stated) == {minutes}, page
