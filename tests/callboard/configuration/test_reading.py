import json
from pathlib import Path

import pytest
from pydantic import Field

from callboard.configuration.host_port import parse_host_port, parse_listen
from callboard.configuration.reading import (
    ExistingFile,
    HostPort,
    Table,
    check_values,
    read_values,
)


class Refused(Exception):
    def __init__(self, lines):
        super().__init__(lines)
        self.lines = lines


class Inner(Table):
    kind: str = Field(alias="class")
    size: int = 1


class Outer(Table):
    at: HostPort | None = None
    file: ExistingFile | None = None
    inner: list[Inner] = []
    other: Inner | None = None


def lines_of(values, folder="", **options):
    path = Path(folder, "x.toml")
    with pytest.raises(Refused) as caught:
        check_values(Outer, values, Refused, path, **options)
    return [line.replace(str(path), "x.toml") for line in caught.value.lines]


def test_every_mistake_is_a_line_with_source_path_value_and_expectation(tmp_path):
    values = {
        "at": "here",
        "file": "none",
        "inner": [{"class": "a", "size": "large"}, {}],
        "other": {"class": "b", "sice": 1},
        "nonsense": 1,
    }

    assert sorted(lines_of(values, folder=tmp_path)) == [
        "x.toml: at = 'here': 'here' is not HOST:PORT; write it like 127.0.0.1:4222",
        f"x.toml: file = 'none': there is no file {tmp_path / 'none'}; "
        "give the path of a file that exists",
        "x.toml: inner.0.size = 'large': input should be a valid integer, "
        "unable to parse string as an integer",
        "x.toml: inner.1.class: this key is required",
        "x.toml: nonsense: there is no such key here; known keys are at, file, inner, other",
        "x.toml: other.sice: there is no such key here; known keys are class, size",
    ]


def test_a_label_stands_for_the_place_of_a_value_that_is_not_of_the_file():
    (line,) = lines_of({"at": "here"}, labels={"at": "--at"})

    assert line.startswith("--at = 'here': ")


def test_a_long_value_is_shortened():
    (line,) = lines_of({"at": "x" * 100})

    assert line.startswith(f"x.toml: at = '{'x' * 56}…: ")


def test_json_is_read_where_it_is_taken_and_toml_by_its_name(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"a": 1}))
    (tmp_path / "a.toml").write_text("a = 1")

    assert read_values(tmp_path / "a.json", Refused, takes_json=True) == {"a": 1}
    assert read_values(tmp_path / "a.toml", Refused, takes_json=True) == {"a": 1}


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("a.toml", b"a = ", "it is not TOML: "),
        ("a.json", b"{", "it is not JSON: "),
        ("a.json", b"[]", "it is a list, not an object"),
        ("a.toml", b"\xff", "it is not UTF-8 text; give the path of a JSON or TOML file"),
        ("a.toml", b"#" * (16 * 1024 * 1024 + 1), "the file is larger than 16,777,216 B"),
        ("a.toml", None, "No such file or directory; give the path of a JSON or TOML file"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line(tmp_path, name, content, line):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(Refused) as caught:
        read_values(path, Refused, takes_json=True)

    (told,) = caught.value.lines
    assert told.startswith(f"{path}: {line}")


@pytest.mark.parametrize(
    "text", ["", "4222", ":4222", "h:", "h:x", "h:65536", "h:" + "9" * 5000]
)
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ValueError, match="not HOST:PORT"):
        parse_host_port(text)


def test_addresses_are_host_and_port_or_the_path_of_a_unix_socket():
    assert parse_host_port("[::1]:80") == ("::1", 80)
    assert parse_listen("localhost:0") == ("localhost", 0)
    assert parse_listen("unix:/run/x") == ("unix:/run/x", 0)
