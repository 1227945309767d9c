"""Read configurations: TOML or JSON into pydantic tables.

`read_values` reads a file, `check_values` makes a table of its values, and `check_whole` also
applies checks that types cannot express. Each raises one error with a line for every mistake:
file, path of the key, value, and the expected form. The caller chooses the class of the error
(`refuse`).
"""

import copy
import json
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from callboard.configuration.host_port import parse_host_port, parse_listen
from callboard.support.files.user_file import read_user_file
from callboard.support.redaction import HIDDEN, hidden, is_secret, redacted
from callboard.support.seconds import LARGEST
from callboard.support.text import TEXT_LIMIT, safe_repr

#: Bytes of a configuration file. Parsers need several times its size in memory.
FILE_LIMIT: Final = 16 * 1024 * 1024

#: Characters of a value that an error line quotes.
REPR_LIMIT: Final = 60

#: Nested tables and lists, and parts of a dotted key. Real configurations have at most six.
DEPTH_LIMIT: Final = 64
_TOO_DEEP: Final = f"it is nested more than {DEPTH_LIMIT} deep"
_KEY_PART: Final = r"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+"""
_DEEP_KEY: Final = re.compile(rf"(?<![\w-])(?:{_KEY_PART}\.[ \t]*+){{{DEPTH_LIMIT}}}")

LogLevel = Literal["debug", "info", "warning", "error", "critical"]

#: Builds the caller's error from one line for each mistake.
Refuse = Callable[[list[str]], Exception]


class Table(BaseModel):
    """A table of a configuration; unknown keys are mistakes."""

    # Tracebacks print pydantic's error as the cause of ours; its inputs may be passwords.
    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True
    )

    @field_validator("*")
    @classmethod
    def _check_range(cls, value: Any) -> Any:
        """Refuse numbers that a float or a system call cannot represent."""
        if isinstance(value, int | float) and not -LARGEST <= value <= LARGEST:
            message = f"at most {LARGEST:,}"
            raise ValueError(message)
        return value


class StrictTable(Table):
    """A table without conversions: a text is not accepted for a number."""

    model_config = ConfigDict(strict=True)


T = TypeVar("T", bound=BaseModel)
C = TypeVar("C")


def text_form(parse: Callable[[str], object]) -> AfterValidator:
    """Return a validator that keeps a text unchanged and refuses it if `parse` raises."""

    def check(text: str) -> str:
        parse(text)
        return text

    return AfterValidator(check)


def find_file(path: Path, info: ValidationInfo) -> Path:
    """Return the path of an existing file; relative paths start at the context's folder.

    Raises:
        ValueError: the file does not exist.
    """
    folder: Path = (info.context or {}).get("folder", Path())
    file = folder / path
    if not file.is_file():
        kind = "a Python file" if info.field_name == "app" else "a file that exists"
        message = f"there is no file {file}; give the path of {kind}"
        raise ValueError(message)
    return file


HostPort = Annotated[str, text_form(parse_host_port)]
Listen = Annotated[str, text_form(parse_listen)]
ExistingFile = Annotated[Path, AfterValidator(find_file)]


class TooDeep(ValueError):
    """A JSON or TOML text is nested deeper than `DEPTH_LIMIT`."""


def parse(text: str, kind: str) -> Any:
    """Parse TOML or JSON text.

    Raises:
        TooDeep: its values, or the parts of a key, are nested deeper than `DEPTH_LIMIT`.
        ValueError: the text is malformed.
    """
    # tomllib takes quadratic time for the parts of a dotted key, so count them first.
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
    """Read a TOML file, or a JSON file if `takes_json` and its name does not end in `.toml`.

    Args:
        path: path of the file.
        refuse: builds the error.
        takes_json: whether the file may be JSON.

    Raises:
        Exception: the error from `refuse`: the file cannot be read or is malformed.
    """
    kind = "JSON" if takes_json and path.suffix != ".toml" else "TOML"
    step = f"give the path of a {'JSON or TOML' if takes_json else 'TOML'} file"
    try:
        values: Any = parse(read_user_file(path, FILE_LIMIT).decode(), kind)
    except OSError as error:
        line = f"{path}: {error.strerror}; {step}"
    except UnicodeDecodeError:
        line = f"{path}: it is not UTF-8 text; {step}"
    except ValueError as error:  # parse errors, numbers with too many digits, TooDeep
        line = f"{path}: it is not {kind}: {error}; correct it there"
    else:
        if isinstance(values, dict):
            return values
        line = f"{path}: it is a {type(values).__name__}, not an object with keys"
    raise refuse([line])


def check_values(
    table: type[T],
    values: Mapping[str, Any],
    refuse: Refuse,
    path: Path | None,
    labels: Mapping[str, str] | None = None,
) -> T:
    """Build a table from values.

    Args:
        table: the class of the table.
        values: values by key.
        refuse: builds the error.
        path: path of the file; relative `ExistingFile` paths start in its folder. None if the
            values are not from a file.
        labels: names for keys whose values are not from the file: an option, a variable.

    Raises:
        Exception: the error from `refuse`, with a line for each mistake.
    """
    folder = Path() if path is None else path.parent
    try:
        return table.model_validate(values, context={"folder": folder})
    except ValidationError as error:
        raise refuse(explain(error, table, str(path), labels=labels)) from error


def explain(
    error: ValidationError,
    table: type[BaseModel],
    source: str,
    *,
    at: str = "",
    labels: Mapping[str, str] | None = None,
) -> list[str]:
    """Return a line for each mistake in a pydantic error.

    Args:
        error: pydantic's error.
        table: the class of the table that was validated.
        source: the name of the configuration, such as its path.
        at: the path of the table within the configuration.
        labels: as for `check_values`; a label replaces source and path.
    """
    lines = []
    for mistake in error.errors():
        key_path = ".".join(map(str, (at, *mistake["loc"]) if at else mistake["loc"]))
        label = (labels or {}).get(str(next(iter(mistake["loc"]), "")))
        label = label or f"{source}: {key_path or 'the whole'}"
        if mistake["type"] == "missing":
            lines.append(f"{label}: this key is required")
        elif mistake["type"] == "extra_forbidden":
            names = ", ".join(_keys(_table_at(table, mistake["loc"])))
            lines.append(f"{label}: there is no such key here; known keys are {names}")
        else:
            text = mistake["msg"].removeprefix("Value error, ")
            text = text[0].lower() + text[1:] if text.startswith("Input") else text
            lines.append(_mistake(label, mistake["loc"], mistake["input"], text))
    return [redacted(line) for line in lines]


def _mistake(label: str, key_path: tuple[int | str, ...], value: object, text: str) -> str:
    """Return the line of a mistake; values that may be secret are hidden."""
    # The path of a secret file is not secret, and one character cannot be a real secret.
    is_file = isinstance(value, dict) and list(value) == ["file"]
    is_short = (isinstance(value, str) and len(value) <= 1) or (
        isinstance(value, int) and 0 <= value < 10  # str() raises for a huge number
    )
    if is_file or is_short or not any(map(is_secret, key_path)):
        return f"{label} = {show(hidden(value))}: {text}"
    if isinstance(value, str) and value in text:
        text = "it has another form"
    return f"{label} = {HIDDEN}: {text}"


def check_whole(
    table: type[T],
    values: Mapping[str, Any],
    refuse: Refuse,
    more: Callable[[T], Iterable[tuple[str, str]]],
    *,
    source: str = "configuration",
) -> T:
    """Build a table from values, with checks that types cannot express.

    One error reports both kinds of mistakes. Malformed values are removed, and `more` checks
    the rest; otherwise the user would see the second kind only after correcting the first.

    Args:
        table: the class of the table.
        values: values by key.
        refuse: builds the error.
        more: yields for each mistake its path, and ` = value: what to do`.
        source: the name of the configuration in each line.

    Raises:
        Exception: the error from `refuse`, with a line for each mistake.
    """
    lines: list[str] = []
    remaining = copy.deepcopy(dict(values))
    old_indices = {
        id(item): index for items in _lists(remaining) for index, item in enumerate(items)
    }
    for levels in range(DEPTH_LIMIT):
        try:
            result = table.model_validate(remaining)
        except ValidationError as error:
            lines = lines or explain(error, table, source)
            if not _leave_out(remaining, [items["loc"] for items in error.errors()], levels):
                break
        else:
            for path, detail in more(result):
                lines.append(
                    redacted(f"{source}: {_first_path(path, remaining, old_indices)}{detail}")
                )
            if not lines:
                return result
            break
    raise refuse(lines)


def _lists(value: Any) -> Iterable[list[Any]]:
    """Iterate over the lists in a value, at all depths."""
    if isinstance(value, list):
        yield value
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _lists(inner)


def _leave_out(values: Any, mistakes: list[tuple[int | str, ...]], levels: int) -> bool:
    """Delete the wrong value of each mistake.

    With `levels` above 0, delete the container that is that many levels above the value
    instead. Return False if nothing would be left.
    """
    targets: dict[tuple[int, Any], Any] = {}
    for key_path in mistakes:
        holders: list[tuple[Any, Any]] = []
        node, above = values, levels
        for part in key_path:
            try:
                inner = node[part]
            except (LookupError, TypeError):  # a missing key: delete the table that lacks it
                above = max(0, levels - 1)
                break
            holders.append((node, part))
            node = inner
        if above >= len(holders):
            return False
        holder, part = holders[len(holders) - 1 - above]
        targets[id(holder), part] = holder
    for (_, part), holder in reversed(targets.items()):  # from the end: list indices stay valid
        del holder[part]
    return True


def _first_path(path: str, values: Any, old_indices: Mapping[int, int]) -> str:
    """Return a path with the list indices that items had before some were deleted."""
    parts: list[str] = []
    for part in path.split("."):
        is_index = isinstance(values, list) and part.isdecimal() and int(part) < len(values)
        if is_index:
            values = values[int(part)]
            parts.append(str(old_indices.get(id(values), part)))
        else:
            values = values.get(part) if isinstance(values, dict) else None
            parts.append(part)
    return ".".join(parts)


def names_in(values: Mapping[str, Any], key: str) -> list[str]:
    """Return the names of the tables in a list, including tables with mistakes."""
    items: Any = values.get(key)
    tables = (
        [table for table in items if isinstance(table, dict)] if isinstance(items, list) else []
    )
    return [table["name"] for table in tables if isinstance(table.get("name"), str)]


def show(value: object) -> str:
    """Return a value as error lines quote it, cut to `REPR_LIMIT`."""
    text = str(value) if isinstance(value, Path) else safe_repr(value, TEXT_LIMIT)
    return text if len(text) <= REPR_LIMIT else f"{text[: REPR_LIMIT - 3]}…"


def _keys(table: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in table.model_fields.items()]


def _table_at(table: type[BaseModel], key_path: tuple[int | str, ...]) -> type[BaseModel]:
    """Return the class of the table that contains the last part of a path."""
    for part in key_path[:-1]:
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


# --- line numbers of mistakes in TOML files ---

_HEADER: Final = re.compile(r"\s*(\[\[?)\s*([\w.\- ]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY: Final = re.compile(r"""\s*["']?([\w.-]+)["']?\s*=(.*)""")
_TEXT: Final = re.compile(r'"(?:[^"\\]|\\.)*"|\'[^\']*\'')


def numbered(path: Path, refuse: Callable[[list[str]], Any], check: Callable[[], C]) -> C:
    """Run a check, and add the line of the file to each mistake that it reports."""
    kind: Any = refuse
    try:
        return check()
    except kind as error:
        if path.suffix == ".json":
            raise
        numbers = _line_numbers(path.read_text(encoding="utf-8"))
        raise refuse([_with_number(line, path, numbers) for line in error.lines]) from None


def _line_numbers(text: str) -> dict[str, int]:
    """Return the line numbers of keys, and of texts in lists, by their paths in mistakes."""
    numbers: dict[str, int] = {}
    tables: Counter[str] = Counter()
    prefix = key = ""
    index = 0
    for number, line in enumerate(text.split("\n"), 1):
        header = _HEADER.match(line)
        pair = None if header else _KEY.match(line)
        rest = line
        if header:
            prefix, key = _path_of(header[2], tables, is_list=header[1] == "[["), ""
            numbers.setdefault(prefix.rstrip("."), number)
        elif pair:
            key, index, rest = f"{prefix}{pair[1]}", 0, pair[2]
            numbers.setdefault(key, number)
        if key:
            for _ in _TEXT.findall(rest):
                numbers.setdefault(f"{key}.{index}", number)
                index += 1
    return numbers


def _path_of(name: str, tables: "Counter[str]", *, is_list: bool) -> str:
    """Return the path of the table that a header opens, with the indices of list tables."""
    path, parts = "", [part.strip() for part in name.split(".")]
    for depth, part in enumerate(parts, 1):
        path += part
        if is_list and depth == len(parts):
            tables[path] += 1
        path += f".{tables[path] - 1}." if tables[path] else "."
    return path


def _with_number(line: str, path: Path, numbers: Mapping[str, int]) -> str:
    """Return the line of a mistake with the line number of its key, or else of its table."""
    text = line.removeprefix(f"{path}: ")
    match = re.match(r"([\w.-]+)(?: = |: there is no such key)", text)
    key_path = "" if match is None else match[1]
    while key_path and key_path not in numbers:
        key_path = key_path.rpartition(".")[0]
    return f"{line} (line {numbers[key_path]})" if key_path else line
