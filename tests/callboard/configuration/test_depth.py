"""Configurations that are nested as none is: a mistake in a line, and soon."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.cli.app import main
from callboard.configuration.reading import DEPTH_LIMIT, TooDeep, parse, read_values

DEEP = {
    "lists.toml": "a = " + "[" * 6000 + "]" * 6000,
    "tables.toml": "a = " + "{b=" * 6000 + "1" + "}" * 6000,
    "key.toml": ".".join("a" * 20_000) + " = 1",
    "quoted.toml": '"a" . ' * 20_000 + "b = 1",
    "header.toml": "[" + ".".join("a" * 20_000) + "]",
    "list.toml": "[[" + ".".join("a" * 20_000) + "]]",
    "inline.toml": "x = {" + ".".join("a" * 20_000) + " = 1}",
    "some.toml": "a = " + "[" * 100 + "]" * 100,
    "lists.json": "[" * 6000 + "]" * 6000,
    "maps.json": '{"a":' * 6000 + "1" + "}" * 6000,
    "some.json": '{"a":' * 100 + "1" + "}" * 100,
}


@pytest.mark.parametrize("name", DEEP)
def test_what_is_nested_too_deep_is_a_mistake_told_soon(tmp_path, name):
    path = tmp_path / name
    path.write_text(DEEP[name])
    started = time.monotonic()

    with pytest.raises(ValueError, match="nested more than 64 deep"):
        read_values(path, lambda lines: ValueError("; ".join(lines)), takes_json=True)
    assert time.monotonic() - started < 60


@pytest.mark.parametrize("name", [name for name in DEEP if name.endswith(".toml")])
@pytest.mark.parametrize(
    "command",
    [
        ("node", "check"),
        ("mqtt", "check"),
        ("gateway", "check"),
        ("node", "run"),
        ("flow", "broker", "--rules"),
    ],
)
def test_commands_tell_it_in_a_line(tmp_path, capsys, name, command):
    path = tmp_path / name
    path.write_text(DEEP[name])

    code = main([*command, str(path)])

    assert code != 0
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "a" * 200_000,
        '"' * 200_000,
        "a " * 200_000,
        ("a." * 60 + "\n") * 2_000,
        "'" + "a" * 200_000,
    ],
)
def test_looking_for_deep_keys_takes_linear_time(text):
    started = time.monotonic()
    try:
        parse(text, "TOML")
    except ValueError:
        pass
    assert time.monotonic() - started < 100  # where the square takes many minutes


@given(st.integers(1, 2 * DEPTH_LIMIT), st.sampled_from(["TOML", "JSON"]))
def test_up_to_the_limit_is_read(depth, kind):
    inner = "[" * depth + "]" * depth
    text = f"a = {inner}" if kind == "TOML" else inner
    levels = depth + (kind == "TOML")
    if levels > DEPTH_LIMIT:
        with pytest.raises(TooDeep):
            parse(text, kind)
    else:
        assert parse(text, kind) is not None
