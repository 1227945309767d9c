"""`callboard topic …`."""

from pathlib import Path
from typing import Annotated

import typer

from callboard.cli.credentials import SecretFile, TlsFolder, read_credentials

topic_app = typer.Typer(
    help="Publish and subscribe.", no_args_is_help=True, rich_markup_mode=None
)

Peers = Annotated[
    list[str] | None,
    typer.Option("--peer", metavar="ADDRESS", help="basp://HOST:PORT of a node; repeatable."),
]
Listen = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="Where others reach this one; port 0 is free.")
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Listen on public addresses without secret or TLS.")
]
Count = Annotated[int, typer.Option(min=0, help="End after so many messages; 0 is no end.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON lines.")]


@topic_app.callback()
def topic() -> None:
    """Publish and subscribe."""


@topic_app.command()
def pub(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="For instance /metrics/cpu.")],
    values: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[VALUES]...", help="Each JSON, or else text; default: the lines of stdin."
        ),
    ] = None,
    *,
    peer: Peers = None,
    listen: Listen = "",
    rate: Annotated[
        float, typer.Option(min=0.0, help="Messages a second at most; 0 is no limit.")
    ] = 0.0,
    ping: Annotated[
        bool,
        typer.Option("--ping", help="Measure round trips to a `topic sub --ping` instead."),
    ] = False,
    count: Annotated[int, typer.Option(min=1, help="Round trips of --ping.")] = 10,
    timeout: Annotated[
        float, typer.Option(min=0.0, help="Seconds for peers and subscribers to appear.")
    ] = 10.0,
    insecure: Insecure = False,
    secret_file: SecretFile = None,
    tls: TlsFolder = None,
    as_json: AsJson = False,
) -> None:
    """Publish values, and wait until they are where somebody wants them.

    Publishing begins when some node in reach subscribes to the topic, and ends when all nodes
    have confirmed; --timeout 0 publishes to whoever is there.

    \b
    Examples:
      callboard topic pub /metrics/cpu 0.5 --peer basp://127.0.0.1:4222
      tail -f app.log | callboard topic pub /log/app --listen 127.0.0.1:4223
      callboard topic pub /metrics --ping --count 100 --peer basp://127.0.0.1:4222 --json
    """  # noqa: D301
    from callboard.cli.joining import Joining
    from callboard.cli.publishing import measure_round_trips, publish_values

    joining = Joining(
        listen=listen,
        peers=tuple(peer or ()),
        timeout=timeout,
        insecure=insecure,
        credentials=read_credentials(secret_file, tls),
        as_json=as_json,
    )
    if ping:
        measure_round_trips(joining, topic, count=count, rate=rate)
    else:
        publish_values(joining, topic, values or (), rate=rate)


@topic_app.command()
def sub(
    topics: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOPICS]...", help="What they begin with; default: all."),
    ] = None,
    *,
    peer: Peers = None,
    listen: Listen = "",
    count: Count = 0,
    rate: Annotated[
        bool, typer.Option("--rate", help="Print messages a second instead of messages.")
    ] = False,
    ping: Annotated[
        bool, typer.Option("--ping", help="Answer each `topic pub --ping`.")
    ] = False,
    timeout: Annotated[float, typer.Option(min=0.0, help="Seconds to reach each peer.")] = 10.0,
    insecure: Insecure = False,
    secret_file: SecretFile = None,
    tls: TlsFolder = None,
    as_json: AsJson = False,
) -> None:
    """Print what arrives, one message a line, until Ctrl-C or SIGTERM.

    A subscription takes every topic that begins with it: /a takes /a/b and /ab.

    \b
    Examples:
      callboard topic sub /metrics --listen 127.0.0.1:4222
      callboard topic sub /metrics /log --peer basp://127.0.0.1:4222 --json | jq .data
      callboard topic sub --rate --peer basp://127.0.0.1:4222
    """  # noqa: D301
    from callboard.cli.joining import Joining
    from callboard.cli.subscribing import print_messages

    joining = Joining(
        listen=listen,
        peers=tuple(peer or ()),
        timeout=timeout,
        insecure=insecure,
        credentials=read_credentials(secret_file, tls),
        as_json=as_json,
    )
    print_messages(joining, tuple(topics or ("",)), count=count, shows_rate=rate, answers=ping)


@topic_app.command()
def record(
    topics: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TOPICS]... [FOLDER]",
            help="What they begin with, default all; without --log the log's directory.",
        ),
    ] = None,
    *,
    folder: Annotated[
        Path | None, typer.Option("--log", metavar="FOLDER", help="The directory of the log.")
    ] = None,
    peer: Peers = None,
    listen: Listen = "",
    count: Count = 0,
    sync: Annotated[
        str, typer.Option(help="What is durable when: none, group (10 ms) or each.")
    ] = "group",
    retain: Annotated[
        str, typer.Option(metavar="LIMITS", help="bytes=N,records=N,seconds=N; default: all.")
    ] = "",
    columns: Annotated[
        bool, typer.Option("--columns", help="Keep what is complete as Parquet as well.")
    ] = False,
    rate: Annotated[bool, typer.Option("--rate", help="Print figures every second.")] = False,
    timeout: Annotated[float, typer.Option(min=0.0, help="Seconds to reach each peer.")] = 10.0,
    insecure: Insecure = False,
    secret_file: SecretFile = None,
    tls: TlsFolder = None,
    as_json: AsJson = False,
) -> None:
    """Record what arrives into a log, until Ctrl-C or SIGTERM.

    A log that exists is gone on with. What came is durable when the command has ended; the
    exit code is 1 if messages were lost, because the disk was too slow or refused.

    \b
    Examples:
      callboard topic record /metrics metrics --listen 127.0.0.1:4222
      callboard topic record /cpu /disk --log metrics --peer basp://127.0.0.1:4222 --rate
      callboard topic record --log all --peer basp://127.0.0.1:4222 --retain seconds=86400
    """  # noqa: D301
    from functools import partial

    from callboard.cli.joining import Joining
    from callboard.cli.recording import (
        parse_retention,
        parse_sync,
        record_topics,
        split_arguments,
    )
    from callboard.commitlog import CommitLog

    wanted, place = split_arguments(topics or [], folder)
    joining = Joining(
        listen=listen,
        peers=tuple(peer or ()),
        timeout=timeout,
        insecure=insecure,
        credentials=read_credentials(secret_file, tls),
        as_json=as_json,
    )
    make_log = partial(
        CommitLog,
        place,
        sync=parse_sync(sync),
        retain=parse_retention(retain),
        columns=columns,
    )
    code = record_topics(
        joining,
        wanted,
        make_log,
        count=count,
        shows_rate=rate,
    )
    raise typer.Exit(code)
