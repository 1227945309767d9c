"""Inspection tables: packages describe their state as rows of plain values.

Each package registers a function that creates the rows of a table, by a name such as `topics`
or `stores`. Rows are created at each request, so tables need no counters and no storage, and
only the requested rows are sent. Search, sorting and paging are shared, and run on the node
that has the rows.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, field, fields
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Final

from callboard.support.dataclass import dataclass

Row = dict[str, Any]

_PLAIN: Final = (str, int, float, bool, type(None))

#: Creates rows. Arguments: the subject (a store, a client; "" for all), and the rights of the
#: requester, `None` for all rights.
Source = Callable[[str, Any], Iterable[Row] | Awaitable[Iterable[Row]]]

#: Tables of a process that belong to no node, such as logs; every node of the process has them.
PROCESS_TABLES: Final[dict[str, list[Source]]] = {}

#: Tables that exist only after the first use of their package, and are empty until then. Other
#: tables without a source do not exist in this release.
LATE_TABLES: Final = frozenset({"queues", "queue_dead"})

#: Rows in one answer.
ROW_LIMIT: Final = 10_000
#: Rows of one table that are searched and sorted.
SCAN_LIMIT: Final = 100_000

#: Characters of a text that are used for sorting.
KEY_LIMIT: Final = 80

#: Sort key of a value: numbers precede texts, and the case of texts is ignored.
Key = tuple[int, float | str]


@dataclass(frozen=True, slots=True)
class RowWindow:
    """A page of a table: the rows of a request.

    Attributes:
        search: text in any column, ignoring case; "" for all rows.
        sort: column to sort by; "" keeps the order of creation.
        rising: whether the smallest value is first.
        skip: number of rows before the page.
        limit: number of rows in the page.
    """

    search: str = ""
    sort: str = ""
    rising: bool = False
    skip: int = 0
    limit: int = 100


@dataclass(frozen=True, slots=True)
class RowCut:
    """The rows of a page, the number of all matching rows, and the sort keys of all of them."""

    rows: list[Row]
    count: int
    keys: list[Key] = field(default_factory=list)


def key_of(value: object) -> Key:
    """Return the sort key of a value."""
    if isinstance(value, int | float):
        return 0, value if value == value else 0.0  # NaN has no order
    text = str("" if value is None else value)[:KEY_LIMIT].casefold()
    return 1, text.encode("utf-8", "backslashreplace").decode()  # keys are sent as UTF-8


def holds(row: Mapping[str, object], search: str) -> bool:
    """Return whether a value of a row contains a text; `search` must be case-folded."""
    return any(search in str(value).casefold() for value in row.values())


def cut(rows: Iterable[Row], window: RowWindow) -> RowCut:
    """Return the rows of a page; thread-safe."""
    return cut_sorted(in_order(rows, window), window)


def in_order(rows: Iterable[Row], window: RowWindow) -> list[Row]:
    """Return all rows that match the search of a window, in its order."""
    matches = list(islice(rows, SCAN_LIMIT))
    if window.search:
        search = window.search.casefold()
        matches = [row for row in matches if holds(row, search)]
    if window.sort:
        sort = window.sort
        matches.sort(key=lambda row: key_of(row.get(sort)), reverse=not window.rising)
    return matches


def cut_sorted(rows: list[Row], window: RowWindow, *, keys: bool = True) -> RowCut:
    """Return the rows of a page; ``rows`` must be in the order of the window."""
    sort = window.sort
    sort_keys = [key_of(row.get(sort)) for row in rows] if sort and keys else []
    skip, limit = max(0, window.skip), max(0, min(window.limit, ROW_LIMIT))
    return RowCut(rows[skip : skip + limit], len(rows), sort_keys)


def share(
    keys: Sequence[Sequence[Any]], window: RowWindow
) -> tuple[list[tuple[int, int]], list[int]]:
    """Merge several sorted lists; return the slice of each list for a page of the result.

    If keys are equal, rows of earlier lists are first, and each list keeps its order.

    Args:
        keys: sort keys of each list, in order.
        window: the page of the merged list.

    Returns:
        For each list the numbers of rows to skip and to take; and for each row of the page the
        index of its list.
    """
    tagged = [
        (key_tuple(key), index)
        for index, list_keys in enumerate(keys)
        for key in list_keys[:SCAN_LIMIT]
    ]
    tagged.sort(key=lambda pair: pair[0], reverse=not window.rising)
    lists = [index for _, index in tagged]
    begin, end = max(0, window.skip), max(0, window.skip) + max(0, window.limit)
    skips, inside = lists[:begin], lists[begin:end]
    return [(skips.count(index), inside.count(index)) for index in range(len(keys))], inside


def slices_fit(
    slices: Sequence[tuple[int, Sequence[Any], int]], window: RowWindow
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]] | None:
    """Merge several sorted lists as `share`, if only a slice of each list is known.

    Args:
        slices: for each list, the number of rows before the slice, the keys of the slice, and
            the number of all rows.
        window: the page of the merged list.

    Returns:
        The result of `share`, but with the index of the list and the offset in its slice for
        each row of the page; None if unknown rows may belong to the page.
    """
    tagged = [
        (key_tuple(key), index, offset)
        for index, (_, keys, _) in enumerate(slices)
        for offset, key in enumerate(keys)
    ]
    tagged.sort(key=lambda row: row[0], reverse=not window.rising)
    skipped, count = sum(skip for skip, _, _ in slices), sum(size for _, _, size in slices)
    begin, end = window.skip - skipped, min(window.skip + window.limit, count) - skipped
    if begin < 0 or end > len(tagged) or begin >= end:
        return None
    lists = [index for _, index, _ in tagged]
    last = {index: position for position, index in enumerate(lists)}
    for index, (skip, keys, size) in enumerate(slices):
        if skip and (not keys or lists.index(index) > begin):
            return None  # rows before the slice may belong to the page
        if skip + len(keys) < size and last.get(index, -1) < end - 1:
            return None  # rows after the slice may belong to the page
    inside = [(index, offset) for _, index, offset in tagged[begin:end]]
    page_lists = [index for index, _ in inside]
    parts = [
        (skip + lists[:begin].count(index), page_lists.count(index))
        for index, (skip, _, _) in enumerate(slices)
    ]
    return parts, inside


def key_tuple(key: Any) -> Key:
    """Return a key of another node in a form that can be compared with all other keys."""
    try:
        kind, value = key
    except (TypeError, ValueError):
        return 1, ""
    return key_of(value) if kind == 0 and isinstance(value, int | float) else (1, str(value))


def found_rows(records: Iterable[tuple[str, Any]]) -> list[Row]:
    """Return the records of several nodes as rows that start with the name of the node.

    The option `--json` of commands prints these rows, and the API of dashboards returns them.
    """
    return [{"node": node, **row_of(record)} for node, record in records]


def row_of(record: Any) -> Row:
    """Return a dataclass instance as a row; copy its values only if some are not plain."""
    row = {column.name: getattr(record, column.name) for column in fields(record)}
    return row if all(type(value) in _PLAIN for value in row.values()) else asdict(record)


def event_row(event: Any, now: datetime | None = None) -> Row:
    """Return an `EventInfo` as a row with its time; `now` is the time of the report."""
    time = (now or datetime.now(UTC)) - timedelta(seconds=event.age)
    return {"time": time.isoformat(), "kind": event.kind, **event.values}
