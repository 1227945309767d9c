"""Every command refuses a bad value of an option in one line, with exit code 2.

It is said before anything is dialed or opened that could take long.
"""

import inspect
from typing import Any

import pytest

from callboard.cli import main
from callboard.cli.app import whole
from callboard.commitlog import CommitLog

#: Values that no option of a kind can have, by the type and the word in the help.
BAD = {
    ("int", None): ["x", "1.5"],
    ("int", "OFFSET"): ["x", "-1"],
    ("float", None): ["x", "nan"],
    ("float", "SECONDS"): ["x", "nan", "-1"],
    ("str", "HOST:PORT"): ["nonsense", "127.0.0.1:99999"],
    ("list[str]", "ADDRESS"): ["nonsense", "basp://"],
    ("list[str]", "KEY=VALUE"): ["nonsense"],
    ("list[str]", "NAME=VALUE"): ["nonsense"],
    ("str", "SPAN"): ["fast", "-3s", "nan"],
    ("str", "SPAN:SLOTS"): ["1d", "fast:2"],
    ("str", "N"): ["fast", "-3", "nan", "inf"],
    ("str", "TIME"): ["yesterday"],
    ("str", "PLACE"): ["nowhere", "-5"],
    ("str", "LIMITS"): ["nonsense", "bytes=x"],
    ("str", "CONDITION"): ["key ="],
    ("str", "DDL|FILE"): ["nonsense"],
    ("str", "WHO"): ["nobody"],
    ("str", "exit|stay"): ["run"],
    ("str", "text|json"): ["xml"],
    ("str", "FOLDER|ADDRESS"): ["grpc://nonsense", "basp://127.0.0.1:1"],
    ("Path", "FILE"): ["/no/such/file"],
    ("Path", "FILE.toml"): ["/no/such/file"],
}
#: What is given for arguments and for options that have to be there, by the word in the help.
GOOD = {
    "ADDRESS": "basp://127.0.0.1:1",
    "ADDRESS/NAME": "basp://127.0.0.1:1/till",
    "QUERY": "rates",
    "MESSAGE": "1",
    "URL": "mqtt://127.0.0.1:1",
}
#: Options that may have such a value, and why.
EXCEPT = {
    ("doctor", "--permissions"): "it is what is examined",
    ("flow recv", "--output"): "it is made",
}


def commands(command: Any, path: tuple[str, ...] = ()) -> Any:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
        return
    for name in inner:
        yield from commands(inner[name], (*path, name))


def kind_of(parameter: Any) -> tuple[str, str | None]:
    kind = parameter.type_descriptor.annotation
    name = (
        kind.__name__
        if inspect.isclass(kind) and not hasattr(kind, "__origin__")
        else str(kind)
    )
    return name, parameter.metavar


COMMANDS = dict(commands(whole()))
CASES = {
    path: [
        (parameter.opts[0], value)
        for parameter in command.params
        if parameter.param_type_name == "option"
        for value in BAD.get(kind_of(parameter), ())
        if (" ".join(path), parameter.opts[0]) not in EXCEPT
    ]
    for path, command in sorted(COMMANDS.items())
}


def line(path: tuple[str, ...], option: str, value: str) -> list[str]:
    """Return a command line that is right but for one value."""
    given = [*path]
    for each in COMMANDS[path].params:
        if each.param_type_name == "argument" and each.required:
            given.append(GOOD.get(each.metavar or "", "cpu"))
        elif each.param_type_name == "option" and each.required and each.opts[0] != option:
            given += [each.opts[0], "cpu"]
    return [*given, f"{option}={value}" if option.startswith("--") else option + value]


def refuse(*_: object, **__: object) -> None:
    pytest.fail("Java would be started")


@pytest.mark.slow
@pytest.mark.parametrize("path", [path for path in CASES if CASES[path]], ids=" ".join)
def test_a_bad_value_is_wrong_use(path, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("callboard.pipeline.spark_session.session", refuse)
    with CommitLog("cpu", sync="none") as log:
        log.append("/a", 1)

    wrong = []
    for option, value in CASES[path]:
        code = main(line(path, option, value))
        said = capsys.readouterr().err
        if (code, said.count("\n")) != (2, 1):
            wrong.append((option, value, code, said))

    assert not wrong


def test_places_that_are_none_are_wrong_use(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with CommitLog("cpu", sync="none") as log:
        log.append("/a", 1)
    for words in (
        "log tail basp://127.0.0.1:1",
        "log cat s3://",
        "log cat grpc://nonsense",
        "log ls grpc://x",
        "log cat cpu --tail cpu",
        "log archive cpu nonsense",
        "doctor nonsense",
        "node ps nonsense",
        "mqtt top nonsense",
        "pipeline status basp://nonsense",
        "dashboard --listen nonsense",
    ):
        assert main(words.split()) == 2, words
        assert capsys.readouterr().err.count("\n") == 1, words
