"""`callboard log …`."""

from pathlib import Path
from typing import Annotated

import typer

log_app = typer.Typer(help="Look into logs.", no_args_is_help=True, rich_markup_mode=None)

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The directory of the log.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object each line.")]
Topic = Annotated[
    str, typer.Option("--topic", metavar="PREFIX", help="Only topics that begin so.")
]


@log_app.callback()
def log() -> None:
    """Look into logs."""


@log_app.command("ls")
def list_logs(folder: Folder = Path(), *, as_json: AsJson = False) -> None:
    """List the logs in a directory and below.

    \b
    Examples:
      callboard log ls
      callboard log ls /var/lib/shop --json | jq .path
    """  # noqa: D301
    from callboard.cli.logs import print_logs

    print_logs(folder, as_json=as_json)


@log_app.command()
def cat(
    folder: Folder,
    *,
    start: Annotated[
        int | None, typer.Option("--from", min=0, metavar="OFFSET", help="Begin with this one.")
    ] = None,
    since: Annotated[
        str,
        typer.Option(metavar="TIME", help="Begin here: 2026-01-31T12:00:00Z, or seconds ago."),
    ] = "",
    limit: Annotated[int | None, typer.Option(min=1, help="Print so many records.")] = None,
    topic: Topic = "",
    as_json: AsJson = False,
) -> None:
    """Print records.

    \b
    Examples:
      callboard log cat metrics --limit 10
      callboard log cat metrics --since 60 --topic /cpu
      callboard log cat metrics --from 1000 --json | jq .payload
    """  # noqa: D301
    from callboard.cli.logs import print_records

    print_records(folder, start=start, since=since, limit=limit, topic=topic, as_json=as_json)


@log_app.command()
def tail(
    folder: Folder,
    *,
    count: Annotated[int, typer.Option("-n", min=0, help="How many records.")] = 10,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for more; end with Ctrl-C.")
    ] = False,
    topic: Topic = "",
    as_json: AsJson = False,
) -> None:
    """Print the newest records, and with -f those that come.

    \b
    Examples:
      callboard log tail metrics -n 3
      callboard log tail metrics -f --topic /cpu
    """  # noqa: D301
    from callboard.cli.logs import print_tail

    print_tail(folder, count=count, follow=follow, topic=topic, as_json=as_json)


@log_app.command()
def verify(folder: Folder, *, as_json: AsJson = False) -> None:
    """Check every byte of a log; the exit code is 1 when some are damaged.

    \b
    Examples:
      callboard log verify metrics
      callboard log verify metrics --json | jq .lost
    """  # noqa: D301
    from callboard.cli.logs import print_report

    raise typer.Exit(print_report(folder, as_json=as_json))


@log_app.command()
def stats(folder: Folder, *, as_json: AsJson = False) -> None:
    """Tell size, times, segments, and how many records each topic has.

    \b
    Examples:
      callboard log stats metrics
      callboard log stats metrics --json | jq .topics
    """  # noqa: D301
    from callboard.cli.logs import print_stats

    print_stats(folder, as_json=as_json)


@log_app.command()
def columns(folder: Folder, *, as_json: AsJson = False) -> None:
    """Write each sealed segment as Parquet beside it, for Spark, DuckDB and others.

    Sealed are all segments but the newest. What is there already is not written again, and the
    log may be written meanwhile.

    \b
    Examples:
      callboard log columns metrics
      callboard log columns metrics --json | jq -r .columns
    """  # noqa: D301
    from callboard.cli.logs import print_columns

    print_columns(folder, as_json=as_json)


@log_app.command()
def sql(
    query: Annotated[
        str, typer.Argument(metavar="QUERY", help="Tables are logs, by path; `log` is FOLDER.")
    ],
    folder: Folder = Path(),
    *,
    limit: Annotated[
        int, typer.Option(min=1, help="Print so many rows; with --json all are printed.")
    ] = 100,
    as_json: AsJson = False,
) -> None:
    """Query logs with SQL (DuckDB; pip install 'callboard[sql]').

    Columns: offset, time, topic, key, headers, sender, payload, is_bytes, time_ns, and value: the
    payload as JSON.

    \b
    Examples:
      callboard log sql "select topic, count(*) from log group by topic" metrics
      callboard log sql "select avg((value->>'load')::double) from log where topic = '/cpu'" metrics
      callboard log sql "select time, value from '/var/lib/shop' order by time desc limit 9" --json
    """  # noqa: D301, E501
    from callboard.cli.querying import print_rows

    print_rows(query, folder, limit=limit, as_json=as_json)
