"""The reference has every public name."""

import re
from pathlib import Path

import pytest

import callboard
from callboard import commitlog, mqtt, pipeline, simulation

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
PAGES = "".join(path.read_text() for path in FOLDER.glob("*.md"))
DESCRIBED = re.findall(
    r"^\.\. auto(?:class|data|function|exception|module):: (\S+)$", PAGES, re.MULTILINE
)
WITH_ERRORS = {"LinkError", "LinkFull", "MessageTooLarge", "PublicAddress"}


@pytest.mark.parametrize(
    ("package", "elsewhere"),
    [
        (callboard, WITH_ERRORS),
        (simulation, set()),
        (commitlog, set()),
        (mqtt, set()),
        (pipeline, set()),
    ],
)
def test_every_public_name_has_its_place(package, elsewhere):
    prefix = f"{package.__name__}."
    described = {name.removeprefix(prefix) for name in DESCRIBED if name.startswith(prefix)}

    assert set(package.__all__) - elsewhere <= described
    assert elsewhere <= set(callboard.errors.__all__)


def test_nothing_is_described_twice():
    assert len(DESCRIBED) == len(set(DESCRIBED))


def test_every_public_member_of_a_node_stands_in_one_group():
    inner = {"adopt", "worker_class"}  # of callboard itself
    members = {name for name in dir(callboard.Node) if not name.startswith("_")} - inner
    pattern = r"^\.\. auto(?:method|property):: callboard\.Node\.(\w+)$"
    grouped = re.findall(pattern, PAGES, re.MULTILINE)

    assert sorted(grouped) == sorted(members)
