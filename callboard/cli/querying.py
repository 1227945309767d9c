"""The work of `callboard log sql`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import typer

from callboard.cli.columns import columns
from callboard.cli.failure import MISUSED, Failure
from callboard.cli.logs import explained
from callboard.cli.values import to_json
from callboard.commitlog.sql import load_duckdb, open_sql

LOG: Final = "log"
"""The table that is the log which the command names."""

_NUMBERS: Final = (int, float)


def print_rows(query: str, folder: Path, *, limit: int, as_json: bool) -> None:
    """Print what a query returns."""
    with explained():
        duckdb = load_duckdb()
        try:
            with open_sql(_tables(duckdb, query, folder)) as connection:
                found = connection.execute(query)
                names = [str(column[0]) for column in found.description]
                if as_json:
                    kinds = [str(column[1]) for column in found.description]
                    for row in iter(found.fetchone, None):
                        typer.echo(to_json(dict(zip(names, _parsed(row, kinds), strict=True))))
                    return
                rows = found.fetchmany(limit + 1)
        except duckdb.Error as error:
            raise _failure(error) from None
    _print_table(names, rows[:limit])
    if len(rows) > limit:
        typer.echo(f"only the first {limit} rows; --limit prints more, --json all", err=True)


def _tables(duckdb: Any, query: str, folder: Path) -> dict[str, Path]:
    """Return the logs that a query names: `log`, and paths."""
    with duckdb.connect() as connection:
        (tree,) = connection.execute("SELECT json_serialize_sql(?)", [query]).fetchone()
        names = set(_base_tables(json.loads(tree))) or connection.get_table_names(query)
    return {
        name: folder if name == LOG else Path(name)
        for name in sorted(names)
        if name == LOG or Path(name).is_dir()
    }


def _base_tables(node: Any) -> Iterator[str]:
    """Yield the names of tables in a syntax tree of DuckDB; none if it is no SELECT."""
    if isinstance(node, dict):
        if node.get("type") == "BASE_TABLE":
            yield node["table_name"]
        node = list(node.values())
    if isinstance(node, list):
        for part in node:
            yield from _base_tables(part)


def _parsed(row: tuple[Any, ...], kinds: list[str]) -> list[Any]:
    """Return a row with its columns of JSON as values."""
    return [
        json.loads(value) if kind == "JSON" and value is not None else value
        for value, kind in zip(row, kinds, strict=True)
    ]


def _failure(error: Exception) -> Failure:
    why = str(error).splitlines()[0]
    return Failure(why=f"the query fails: {why}", step="see --help for columns", code=MISUSED)


def _print_table(names: list[str], rows: list[tuple[Any, ...]]) -> None:
    texts = [[_text(value) for value in row] for row in rows]
    right = {
        index
        for index in range(len(names))
        if rows and all(isinstance(row[index], _NUMBERS) for row in rows)
    }
    typer.echo(columns(names, texts, right=right))


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return repr(value)[2:-1]
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)
