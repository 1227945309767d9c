"""All commands with all their options, defaults and help texts, as `commands.json` holds them.

A change of it is a change for users. After one that is wanted:
`.venv/bin/python -m tests.callboard.cli.test_all_options`, and read the difference.
"""

import json
from pathlib import Path
from typing import Any

from callboard.cli.app import whole

FILE = Path(__file__).with_name("commands.json")
TOLD = ("required", "nargs", "multiple", "is_flag", "hidden", "is_eager")


def describe(command: Any, path: str) -> dict[str, Any]:
    arguments = [fields(each) for each in command.params if each.param_type_name == "argument"]
    options = [fields(each) for each in command.params if each.param_type_name == "option"]
    found = {
        path: {
            "help": command.help,
            "epilog": command.epilog,
            "no_args_is_help": command.no_args_is_help,
            "arguments": arguments,
            "options": sorted(options, key=lambda each: each["names"]),
        }
    }
    for name, inner in getattr(command, "commands", {}).items():
        found |= describe(inner, f"{path} {name}")
    return found


def fields(parameter: Any) -> dict[str, Any]:
    is_argument = parameter.param_type_name == "argument"
    default = parameter.default
    kind = parameter.type_descriptor.annotation
    told = {
        "names": [*parameter.opts, *parameter.secondary_opts],
        "type": getattr(kind, "__name__", "")
        if isinstance(kind, type)
        else str(kind).replace("_local.", ""),
        "range": [parameter.min, parameter.max],
        "default": default if isinstance(default, str | int | float | None) else repr(default),
        "metavar": parameter.metavar,
        "envvar": parameter.envvar,
        "help": parameter.help,
    }
    if is_argument and parameter.metavar:
        told["names"] = []  # its name is not seen
    told |= {name: getattr(parameter, name, False) for name in TOLD}
    usual = {"range": [None, None], "nargs": 1, "default": "none is usual"}
    return {
        name: value
        for name, value in told.items()
        if value != usual.get(name) and (value is not False or name == "default")
    }


def told_today() -> str:
    found = describe(whole(), "callboard")
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def test_no_command_option_default_or_help_text_has_changed() -> None:
    assert json.loads(told_today()) == json.loads(FILE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    FILE.write_text(told_today(), encoding="utf-8")
