"""Fields of JSON values, and conditions on them."""

import pytest

from callboard.model.conditions import MISSING, check_conditions, field_of, meets

CONTENT = {"load": 0.5, "cpu": {"name": "a", "cores": 4}, "tags": ["x"]}


@pytest.mark.parametrize(
    ("path", "value"),
    [("load", 0.5), ("cpu.cores", 4), ("cpu", CONTENT["cpu"]), ("no", MISSING)],
)
def test_a_path_leads_to_a_field(path: str, value: object) -> None:
    assert field_of(CONTENT, path) == value
    assert field_of([CONTENT], path) is MISSING


@pytest.mark.parametrize(
    ("conditions", "holds"),
    [
        ({}, True),
        ({"load": 0.5, "cpu.name": "a"}, True),
        ({"load": {">": 0.4, "<=": 0.5}}, True),
        ({"load": {">": 0.5}}, False),
        ({"cpu.name": {"in": ["a", "b"]}}, True),
        ({"cpu.name": {">": 1}}, False),
        ({"no": {"!=": 1}}, False),
        ({"no": None}, False),
    ],
)
def test_all_conditions_must_hold(conditions: dict[str, object], holds: bool) -> None:
    assert meets(CONTENT, conditions) is holds


@pytest.mark.parametrize("condition", [{"~": 1}, {"in": "abc"}])
def test_unknown_comparisons_are_refused(condition: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="a: "):
        check_conditions({"a": condition})
