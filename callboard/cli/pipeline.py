"""`callboard pipeline …`."""

from pathlib import Path
from typing import Annotated

import typer

from callboard.cli.credentials import SecretFile, TlsFolder, read_credentials

pipeline_app = typer.Typer(
    help="Run queries over logs with Spark.", no_args_is_help=True, rich_markup_mode=None
)

Query = Annotated[
    str,
    typer.Argument(
        metavar="QUERY",
        help="rates, quantiles, windows, sessions, late, anomalies, join, or FILE.py:FUNCTION.",
    ),
]
Log = Annotated[Path, typer.Option("--log", metavar="FOLDER", help="The log that is read.")]
To = Annotated[
    Path, typer.Option("--to", metavar="FOLDER", help="The log that takes the results.")
]
Field = Annotated[str, typer.Option(help="The field of payloads that holds the value.")]
Window = Annotated[
    str, typer.Option(metavar="SPAN", help="Length of windows, gap of sessions.")
]
Delay = Annotated[str, typer.Option(metavar="SPAN", help="How late records may be.")]
Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", metavar="PREFIX", help="Only topics that begin so; repeatable."),
]
Threshold = Annotated[
    float, typer.Option(min=0.1, help="Standard deviations that make an anomaly.")
]
Season = Annotated[
    str, typer.Option(metavar="SPAN:SLOTS", help="For anomalies: for instance 1d:24.")
]
Left = Annotated[str, typer.Option(metavar="PREFIX", help="For a join: topics of one side.")]
Right = Annotated[str, typer.Option(metavar="PREFIX", help="For a join: of the other side.")]
Within = Annotated[str, typer.Option(metavar="SPAN", help="For a join: how far apart.")]
Master = Annotated[
    str, typer.Option(metavar="URL", help="local[N] or spark://HOST:PORT; default: all cores.")
]
Name = Annotated[str, typer.Option(help="What this run is called; default: as the query.")]
Retain = Annotated[
    str,
    typer.Option(
        metavar="LIMITS",
        help="How long results are kept: bytes=1000000000,records=…,seconds=86400; "
        "default: for ever.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON lines.")]


@pipeline_app.callback()
def pipeline() -> None:
    """Run queries over logs with Spark."""


@pipeline_app.command()
def run(
    query: Query,
    *,
    log: Log,
    to: To,
    batch: Annotated[
        bool, typer.Option("--batch", help="Read what there is once, without a checkpoint.")
    ] = False,
    once: Annotated[
        bool, typer.Option("--once", help="End when all that there is was read.")
    ] = False,
    start: Annotated[
        str, typer.Option("--from", metavar="PLACE", help="earliest, latest, offset or time.")
    ] = "earliest",
    field: Field = "value",
    window: Window = "10s",
    delay: Delay = "10s",
    topic: Topics = None,
    threshold: Threshold = 4.0,
    season: Season = "",
    left: Left = "",
    right: Right = "",
    within: Within = "10s",
    retain: Retain = "",
    max_rows: Annotated[
        int | None, typer.Option(min=1, help="Records of a micro-batch at most.")
    ] = None,
    master: Master = "",
    name: Name = "",
    peer: Annotated[
        list[str] | None,
        typer.Option(
            "--peer", metavar="ADDRESS", help="Publish results and progress there; repeatable."
        ),
    ] = None,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where nodes reach this one for them.")
    ] = "",
    store: Annotated[
        str, typer.Option(metavar="NAME", help="A store whose entries are the results as well.")
    ] = "",
    metrics: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Serve /metrics for monitoring.")
    ] = "",
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen on public addresses without secret.")
    ] = False,
    secret_file: SecretFile = None,
    tls: TlsFolder = None,
    as_json: AsJson = False,
) -> None:
    """Run a query over a log until Ctrl-C; the next run goes on where this one ends.

    Results are appended to the log --to, each batch once whatever dies. With --peer or
    --listen they are messages as well, on their topics, and the progress of each batch is on
    $spark/NAME/progress.

    \b
    Examples:
      callboard pipeline run rates --log metrics --to results
      callboard pipeline run quantiles --log metrics --to results --field load --once
      callboard pipeline run anomalies --log temperatures --to results --season 1d:24 --batch
      callboard pipeline run rates --log metrics --to results --peer basp://127.0.0.1:4222
    """  # noqa: D301
    from callboard.cli.joining import Joining
    from callboard.cli.pipeline_job import Asked, make_job
    from callboard.cli.pipelining import Outlets, run_batch, run_stream

    asked = Asked(field, window, delay, threshold, season, left, right, within, topic, retain)
    job = make_job(query, log, to, asked, start=start, max_rows=max_rows, ends=once, name=name)
    if batch:
        raise typer.Exit(run_batch(job, master, as_json=as_json))
    joining = Joining(
        listen=listen,
        peers=tuple(peer or ()),
        timeout=10.0,
        insecure=insecure,
        credentials=read_credentials(secret_file, tls),
        as_json=as_json,
    )
    outlets = Outlets(joining, store, metrics)
    raise typer.Exit(run_stream(job, master, outlets, as_json=as_json))


@pipeline_app.command()
def replay(
    query: Query,
    *,
    log: Log,
    to: To,
    start: Annotated[
        str, typer.Option("--from", metavar="PLACE", help="earliest, an offset or a time.")
    ],
    until: Annotated[
        str, typer.Option(metavar="PLACE", help="latest, an offset or a time.")
    ] = "latest",
    field: Field = "value",
    window: Window = "10s",
    delay: Delay = "10s",
    topic: Topics = None,
    threshold: Threshold = 4.0,
    season: Season = "",
    left: Left = "",
    right: Right = "",
    within: Within = "10s",
    retain: Retain = "",
    master: Master = "",
    as_json: AsJson = False,
) -> None:
    """Run a query again over a part of a log, into another log.

    \b
    Examples:
      callboard pipeline replay rates --log metrics --to again --from 2026-01-31T12:00:00Z
      callboard pipeline replay quantiles --log metrics --to again --from 1000 --until 9000
    """  # noqa: D301
    from callboard.cli.pipeline_job import Asked, make_job
    from callboard.cli.pipelining import run_batch

    asked = Asked(field, window, delay, threshold, season, left, right, within, topic, retain)
    job = make_job(query, log, to, asked, start=start, end=until)
    raise typer.Exit(run_batch(job, master, as_json=as_json))


@pipeline_app.command()
def status(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The log of results.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Tell of the queries of a log of results: which run, how far they are, how quick.

    \b
    Examples:
      callboard pipeline status results
      callboard pipeline status results --json | jq .lag
    """  # noqa: D301
    from callboard.cli.pipelining import print_status

    print_status(folder, as_json=as_json)
