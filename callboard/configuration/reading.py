"""One way to read configurations: TOML or JSON into pydantic tables.

`read_values` reads a file, `check_values` makes a table of what it says, and `check_whole` also
looks for what the types do not say. Each raises once, with a line for every mistake: file, path
of the key, value, what was expected. How the error is called is said by the room that reads
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
from callboard.support.named_file import read_named
from callboard.support.redaction import HIDDEN, hidden, is_secret, redacted
from callboard.support.seconds import LARGEST
from callboard.support.text import TEXT_LIMIT, shown

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

    # the error of pydantic is the cause of ours, and would show passwords in a traceback
    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True
    )

    @field_validator("*")
    @classmethod
    def _can_be_reckoned_with(cls, value: Any) -> Any:
        """Refuse numbers that floats made of them, or the system, do not hold."""
        if isinstance(value, int | float) and not -LARGEST <= value <= LARGEST:
            message = f"at most {LARGEST:,}"
            raise ValueError(message)
        return value


class StrictTable(Table):
    """A table that takes values only as they are: no number is made of a text."""

    model_config = ConfigDict(strict=True)


T = TypeVar("T", bound=BaseModel)
C = TypeVar("C")


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
    path: Path | None,
    labels: Mapping[str, str] | None = None,
) -> T:
    """Make a table of values.

    Args:
        table: the class of the table.
        values: by key.
        refuse: makes the error.
        path: of the file, in whose folder the paths of `ExistingFile` begin; None for none.
        labels: what mistakes call a key whose value came from elsewhere: an option, a variable.

    Raises:
        Exception: that of `refuse`, with a line for each mistake.
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
            lines.append(_mistake(place, mistake["loc"], mistake["input"], text))
    return [redacted(line) for line in lines]


def _mistake(place: str, where: tuple[int | str, ...], value: object, text: str) -> str:
    """Return the line of a mistake, without a value that is secret."""
    # The place of a secret is not secret, and neither is a value of one character.
    is_place = isinstance(value, dict) and list(value) == ["file"]
    is_short = (isinstance(value, str) and len(value) <= 1) or (
        isinstance(value, int) and 0 <= value < 10  # of other numbers the text may be too long
    )
    if is_place or is_short or not any(map(is_secret, where)):
        return f"{place} = {show(hidden(value))}: {text}"
    if isinstance(value, str) and value in text:
        text = "it has another form"
    return f"{place} = {HIDDEN}: {text}"


def check_whole(
    table: type[T],
    values: Mapping[str, Any],
    refuse: Refuse,
    more: Callable[[T], Iterable[tuple[str, str]]],
    *,
    source: str = "configuration",
) -> T:
    """Make a table of values, and look for mistakes that types do not tell.

    Both kinds are told at once: what is well-formed is looked at, whatever is not.

    Args:
        table: the class of the table.
        values: by key.
        refuse: makes the error.
        more: yields the path of a mistake, and ` = value: what is to be done`.
        source: as in `check_values`.

    Raises:
        Exception: that of `refuse`, with a line for each mistake.
    """
    lines: list[str] = []
    left = copy.deepcopy(dict(values))
    places = {id(item): at for each in _lists(left) for at, item in enumerate(each)}
    for levels in range(DEPTH_LIMIT):
        try:
            made = table.model_validate(left)
        except ValidationError as error:
            lines = lines or explain(error, table, source)
            if not _leave_out(left, [each["loc"] for each in error.errors()], levels):
                break
        else:
            for path, said in more(made):
                lines.append(redacted(f"{source}: {_first_path(path, left, places)}{said}"))
            if not lines:
                return made
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
    """Take out what mistakes are about, or what is so many levels above each; False: all."""
    leaving: dict[tuple[int, Any], Any] = {}
    for where in mistakes:
        holders: list[tuple[Any, Any]] = []
        node, above = values, levels
        for part in where:
            try:
                inner = node[part]
            except (LookupError, TypeError):  # it is missing: the table is what has a mistake
                above = max(0, levels - 1)
                break
            holders.append((node, part))
            node = inner
        if above >= len(holders):
            return False
        holder, part = holders[len(holders) - 1 - above]
        leaving[id(holder), part] = holder
    for (_, part), holder in reversed(leaving.items()):  # so that numbers in lists stay right
        del holder[part]
    return True


def _first_path(path: str, values: Any, places: Mapping[int, int]) -> str:
    """Return a path as it was before items were left out of lists."""
    parts: list[str] = []
    for part in path.split("."):
        is_index = isinstance(values, list) and part.isdecimal() and int(part) < len(values)
        if is_index:
            values = values[int(part)]
            parts.append(str(places.get(id(values), part)))
        else:
            values = values.get(part) if isinstance(values, dict) else None
            parts.append(part)
    return ".".join(parts)


def names_in(values: Mapping[str, Any], key: str) -> list[str]:
    """Return the names of the tables in a list, also of those that have mistakes."""
    items: Any = values.get(key)
    tables = (
        [each for each in items if isinstance(each, dict)] if isinstance(items, list) else []
    )
    return [each["name"] for each in tables if isinstance(each.get("name"), str)]


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


# --- where a mistake stands in a file of TOML ---

_HEADER: Final = re.compile(r"\s*(\[\[?)\s*([\w.\- ]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY: Final = re.compile(r"""\s*["']?([\w.-]+)["']?\s*=(.*)""")
_TEXT: Final = re.compile(r'"(?:[^"\\]|\\.)*"|\'[^\']*\'')


def numbered(path: Path, refuse: Callable[[list[str]], Any], check: Callable[[], C]) -> C:
    """Add the line of the file to each mistake that a check tells, where it is known."""
    kind: Any = refuse
    try:
        return check()
    except kind as error:
        if path.suffix == ".json":
            raise
        numbers = _line_numbers(path.read_text(encoding="utf-8"))
        raise refuse([_with_number(each, path, numbers) for each in error.lines]) from None


def _line_numbers(text: str) -> dict[str, int]:
    """Return the lines of keys and of texts in lists, by their paths as mistakes have them."""
    numbers: dict[str, int] = {}
    tables: Counter[str] = Counter()
    where = key = ""
    item = 0
    for number, line in enumerate(text.split("\n"), 1):
        header = _HEADER.match(line)
        pair = None if header else _KEY.match(line)
        rest = line
        if header:
            where, key = _path_of(header[2], tables, is_list=header[1] == "[["), ""
            numbers.setdefault(where.rstrip("."), number)
        elif pair:
            key, item, rest = f"{where}{pair[1]}", 0, pair[2]
            numbers.setdefault(key, number)
        if key:
            for _ in _TEXT.findall(rest):
                numbers.setdefault(f"{key}.{item}", number)
                item += 1
    return numbers


def _path_of(name: str, tables: "Counter[str]", *, is_list: bool) -> str:
    """Return the path of a table that begins, with the numbers of those in lists before it."""
    path, parts = "", [part.strip() for part in name.split(".")]
    for depth, part in enumerate(parts, 1):
        path += part
        if is_list and depth == len(parts):
            tables[path] += 1
        path += f".{tables[path] - 1}." if tables[path] else "."
    return path


def _with_number(line: str, path: Path, numbers: Mapping[str, int]) -> str:
    """Return what is said of a mistake, with the line where it stands, or its table begins."""
    said = line.removeprefix(f"{path}: ")
    found = re.match(r"([\w.-]+)(?: = |: there is no such key)", said)
    where = "" if found is None else found[1]
    while where and where not in numbers:
        where = where.rpartition(".")[0]
    return f"{line} (line {numbers[where]})" if where else line
