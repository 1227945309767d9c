"""One way to read configurations: TOML or JSON into pydantic tables.

`read_values` reads a file, `check_values` makes a table of what it says. Each raises once, with
a line for every mistake: file, path of the key, value, what was expected. How the error is
called is said by the room that reads (`refuse`).
"""

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, ValidationInfo

from callboard.configuration.host_port import parse_host_port, parse_listen
from callboard.named_file import read_named
from callboard.text import TEXT_LIMIT, shown

#: Bytes of a configuration file: parsers need several times that in memory.
FILE_LIMIT: Final = 16 * 1024 * 1024

#: Characters of a value in the text of a mistake.
SHOWN_LIMIT: Final = 60

#: Levels of tables and lists, and parts of a key, of a configuration: ten times what any has.
DEPTH_LIMIT: Final = 64
_TOO_DEEP: Final = f"it is nested more than {DEPTH_LIMIT} deep"
_KEY_PART: Final = r"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+"""
_DEEP_KEY: Final = re.compile(rf"(?<![\w-])(?:{_KEY_PART}\.[ \t]*+){{{DEPTH_LIMIT}}}")

LogLevel = Literal["debug", "info", "warning", "error", "critical"]

#: Makes the error of a room from a line for each mistake.
Refuse = Callable[[list[str]], Exception]


class Table(BaseModel):
    """A table of a configuration; a key that it does not name is a mistake."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class StrictTable(Table):
    """A table that takes values only as they are: no number is made of a text."""

    model_config = ConfigDict(strict=True)


T = TypeVar("T", bound=BaseModel)


def text_form(parse: Callable[[str], object]) -> AfterValidator:
    """Return a validator that leaves a text as it is and refuses it where `parse` does."""

    def check(text: str) -> str:
        parse(text)
        return text

    return AfterValidator(check)


def find_file(path: Path, info: ValidationInfo) -> Path:
    """Return the path of a file that exists; a relative one begins at the context's folder.

    Raises:
        ValueError: there is no such file.
    """
    folder: Path = (info.context or {}).get("folder", Path())
    place = folder / path
    if not place.is_file():
        kind = "a Python file" if info.field_name == "app" else "a file that exists"
        message = f"there is no file {place}; give the path of {kind}"
        raise ValueError(message)
    return place


HostPort = Annotated[str, text_form(parse_host_port)]
Listen = Annotated[str, text_form(parse_listen)]
ExistingFile = Annotated[Path, AfterValidator(find_file)]


class TooDeep(ValueError):
    """A text of JSON or TOML is nested deeper than a configuration ever is."""


def parse(text: str, kind: str) -> Any:
    """Return what a text of TOML or JSON says.

    Raises:
        TooDeep: its values, or the parts of a key, are nested deeper than `DEPTH_LIMIT`.
        ValueError: it is of another form.
    """
    # tomllib takes quadratic time for the parts of a key, so they are counted first.
    if kind == "TOML" and _DEEP_KEY.search(text):
        raise TooDeep(_TOO_DEEP)
    try:
        values: Any = tomllib.loads(text) if kind == "TOML" else json.loads(text)
    except RecursionError:
        raise TooDeep(_TOO_DEEP) from None
    level = [values] if isinstance(values, dict | list) else []
    for _ in range(DEPTH_LIMIT):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
    if level:
        raise TooDeep(_TOO_DEEP)
    return values


def read_values(path: Path, refuse: Refuse, *, takes_json: bool = False) -> dict[str, Any]:
    """Read a file of TOML; or of JSON, unless its name ends in `.toml`.

    Args:
        path: of the file.
        refuse: makes the error.
        takes_json: whether the file may be JSON.

    Raises:
        Exception: that of `refuse`: the file cannot be read, or has another form.
    """
    kind = "JSON" if takes_json and path.suffix != ".toml" else "TOML"
    step = f"give the path of a {'JSON or TOML' if takes_json else 'TOML'} file"
    try:
        values: Any = parse(read_named(path, FILE_LIMIT).decode(), kind)
    except OSError as error:
        line = f"{path}: {error.strerror}; {step}"
    except UnicodeDecodeError:
        line = f"{path}: it is no text in UTF-8; {step}"
    except ValueError as error:  # of the parsers, numbers of too many digits too; TooDeep
        line = f"{path}: it is no {kind}: {error}; correct it there"
    else:
        if isinstance(values, dict):
            return values
        line = f"{path}: it is a {type(values).__name__}, not an object with keys"
    raise refuse([line])


def check_values(
    table: type[T],
    values: Mapping[str, Any],
    refuse: Refuse,
    *,
    source: str = "configuration",
    labels: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> T:
    """Make a table of values.

    Args:
        table: the class of the table.
        values: by key.
        refuse: makes the error.
        source: what mistakes call the whole: the path of the file.
        labels: what mistakes call a key whose value came from elsewhere: an option, a variable.
        folder: where the paths of `ExistingFile` begin.

    Raises:
        Exception: that of `refuse`, with a line for each mistake.
    """
    try:
        return table.model_validate(values, context={"folder": folder or Path()})
    except ValidationError as error:
        raise refuse(explain(error, table, source, labels=labels)) from error


def explain(
    error: ValidationError,
    table: type[BaseModel],
    source: str,
    *,
    at: str = "",
    labels: Mapping[str, str] | None = None,
) -> list[str]:
    """Return a line for each mistake.

    Args:
        error: of pydantic.
        table: that was to be made.
        source: what the whole is called.
        at: the path of the table in the whole.
        labels: as `check_values` takes them; they stand for source and path.
    """
    lines = []
    for mistake in error.errors():
        where = ".".join(map(str, (at, *mistake["loc"]) if at else mistake["loc"]))
        place = (labels or {}).get(str(next(iter(mistake["loc"]), "")))
        place = place or f"{source}: {where or 'the whole'}"
        if mistake["type"] == "missing":
            lines.append(f"{place}: it has to be there")
        elif mistake["type"] == "extra_forbidden":
            names = ", ".join(_keys(_table_at(table, mistake["loc"])))
            lines.append(f"{place}: there is no such key here; there are {names}")
        else:
            text = mistake["msg"].removeprefix("Value error, ")
            text = text[0].lower() + text[1:] if text.startswith("Input") else text
            lines.append(f"{place} = {show(mistake['input'])}: {text}")
    return lines


def show(value: object) -> str:
    """Return a value as mistakes quote it: shortened."""
    text = str(value) if isinstance(value, Path) else shown(value, TEXT_LIMIT)
    return text if len(text) <= SHOWN_LIMIT else f"{text[: SHOWN_LIMIT - 3]}…"


def _keys(table: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in table.model_fields.items()]


def _table_at(table: type[BaseModel], where: tuple[int | str, ...]) -> type[BaseModel]:
    """Return the table that the last part of a path is a key of."""
    for part in where[:-1]:
        for name, field in table.model_fields.items():
            if part in (name, field.alias):
                table = next(_tables(field.annotation), table)
    return table


def _tables(annotation: Any) -> Any:
    """Iterate over the tables in an annotation like `list[Table] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _tables(part)
