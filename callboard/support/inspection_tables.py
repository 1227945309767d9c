"""What rooms tell of themselves when a node is looked at: rows of plain values, in windows.

A room says once, by a name such as `topics` or `stores`, how its rows are made. Nothing is kept
or counted for that: rows are made when somebody asks, and only those that are asked for travel.
Search, order and window are the same for all of them and are applied at the node that has them.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, field, fields
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Final

from callboard.support.dataclass import dataclass

Row = dict[str, Any]

_PLAIN: Final = (str, int, float, bool, type(None))

#: Makes rows: of what (a store, a client; "" for all), and what the one who asks may see.
#: `None` for rights stands for everything.
Source = Callable[[str, Any], Iterable[Row] | Awaitable[Iterable[Row]]]

#: What a process has beside its nodes, such as logs, told by each node of it.
PROCESS_TABLES: Final[dict[str, list[Source]]] = {}

#: Rows in one answer at most, and those that are looked at: what is beyond is counted only.
ROWS: Final = 10_000
SCAN_LIMIT: Final = 100_000

#: Characters of a text by which rows are sorted.
KEY: Final = 80

#: What is sorted by: numbers before texts, which are compared without regard to case.
Key = tuple[int, float | str]


@dataclass(frozen=True, slots=True)
class RowWindow:
    """Which rows are wanted.

    Attributes:
        search: a text that one of their values holds, in any case; "" for all.
        sort: a column; "" leaves them in the order in which they are made.
        rising: the smallest first.
        skip: rows before the first one that is wanted.
        limit: rows at most.
    """

    search: str = ""
    sort: str = ""
    rising: bool = False
    skip: int = 0
    limit: int = 100


@dataclass(frozen=True, slots=True)
class RowCut:
    """The rows within a window, how many there are in all, and by what all are sorted."""

    rows: list[Row]
    count: int
    keys: list[Key] = field(default_factory=list)


def key_of(value: object) -> Key:
    """Return what a value is sorted by."""
    if isinstance(value, int | float):
        return 0, value if value == value else 0.0
    text = str("" if value is None else value)[:KEY].casefold()
    return 1, text.encode("utf-8", "backslashreplace").decode()  # keys are sent


def holds(row: Mapping[str, object], search: str) -> bool:
    """Return whether a value of a row holds a text; `search` is folded already."""
    return any(search in str(value).casefold() for value in row.values())


def cut(rows: Iterable[Row], window: RowWindow) -> RowCut:
    """Return the rows within a window; from any thread."""
    return cut_sorted(in_order(rows, window), window)


def in_order(rows: Iterable[Row], window: RowWindow) -> list[Row]:
    """Return the rows that a window searches for, in its order, wherever it lies."""
    found = list(islice(rows, SCAN_LIMIT))
    if window.search:
        search = window.search.casefold()
        found = [row for row in found if holds(row, search)]
    if window.sort:
        sort = window.sort
        found.sort(key=lambda row: key_of(row.get(sort)), reverse=not window.rising)
    return found


def cut_sorted(found: list[Row], window: RowWindow, *, keys: bool = True) -> RowCut:
    """Return the part of rows that lies in a window; they are in its order already."""
    sort = window.sort
    sorted_by = [key_of(row.get(sort)) for row in found] if sort and keys else []
    skip, limit = max(0, window.skip), max(0, min(window.limit, ROWS))
    return RowCut(found[skip : skip + limit], len(found), sorted_by)


def share(
    keys: Sequence[Sequence[Any]], window: RowWindow
) -> tuple[list[tuple[int, int]], list[int]]:
    """Return which rows of each of several sorted lists lie in a window over all of them.

    Where keys are equal, rows of earlier lists come first, and each list keeps its order.

    Args:
        keys: of each list, in its order.
        window: over all of them as one list.

    Returns:
        For each list how many of its rows to skip and how many to take; and for each row of the
        window the index of its list.
    """
    tagged = [
        (key_tuple(key), index) for index, each in enumerate(keys) for key in each[:SCAN_LIMIT]
    ]
    tagged.sort(key=lambda pair: pair[0], reverse=not window.rising)
    lists = [index for _, index in tagged]
    begin, end = max(0, window.skip), max(0, window.skip) + max(0, window.limit)
    skips, inside = lists[:begin], lists[begin:end]
    return [(skips.count(each), inside.count(each)) for each in range(len(keys))], inside


def slices_fit(
    slices: Sequence[tuple[int, Sequence[Any], int]], window: RowWindow
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]] | None:
    """Return a window over several sorted lists of which only a slice each is known.

    Args:
        slices: of each list how many rows lie before the slice, the keys of its rows, and how
            many rows the list has.
        window: over all of them as one list.

    Returns:
        What `share` returns, but for each row of the window the index of its list and its place
        in the slice; None where rows that are not known may lie in the window.
    """
    tagged = [
        (key_tuple(key), index, place)
        for index, (_, keys, _) in enumerate(slices)
        for place, key in enumerate(keys)
    ]
    tagged.sort(key=lambda each: each[0], reverse=not window.rising)
    before, count = sum(each[0] for each in slices), sum(each[2] for each in slices)
    begin, end = window.skip - before, min(window.skip + window.limit, count) - before
    if begin < 0 or end > len(tagged) or begin >= end:
        return None
    lists = [index for _, index, _ in tagged]
    last = {index: place for place, index in enumerate(lists)}
    for index, (skip, keys, most) in enumerate(slices):
        if skip and (not keys or lists.index(index) > begin):
            return None  # rows before the slice may lie in the window
        if skip + len(keys) < most and last.get(index, -1) < end - 1:
            return None  # rows behind it may
    inside = [(index, place) for _, index, place in tagged[begin:end]]
    taken = [index for index, _ in inside]
    places = [
        (skip + lists[:begin].count(index), taken.count(index))
        for index, (skip, _, _) in enumerate(slices)
    ]
    return places, inside


def key_tuple(key: Any) -> Key:
    """Return a key that came over the wire as one that can be compared with any other."""
    try:
        kind, value = key
    except (TypeError, ValueError):
        return 1, ""
    return key_of(value) if kind == 0 and isinstance(value, int | float) else (1, str(value))


def found_rows(found: Iterable[tuple[str, Any]]) -> list[Row]:
    """Return what nodes told, a row for each thing, with the name of its node before it.

    So `--json` of the commands prints them, and the API of dashboards answers them.
    """
    return [{"node": node, **row_of(each)} for node, each in found]


def row_of(thing: Any) -> Row:
    """Return a dataclass as a row; plain values are not copied one by one."""
    row = {each.name: getattr(thing, each.name) for each in fields(thing)}
    return row if all(type(value) in _PLAIN for value in row.values()) else asdict(thing)


def event_row(event: Any, now: datetime | None = None) -> Row:
    """Return an `EventInfo` with the time at which it happened; `now` is when it was told."""
    at = (now or datetime.now(UTC)) - timedelta(seconds=event.age)
    return {"time": at.isoformat(), "kind": event.kind, **event.values}
