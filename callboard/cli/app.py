"""The commands, without their work: what is imported here is all that `--help` costs."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, cast

import typer

from callboard.cli.actor import actor_app
from callboard.cli.credentials import SecretFile, TlsFolder, read_credentials
from callboard.cli.failure import FAILED, MISUSED, Failure, explain, one_line
from callboard.cli.flow import flow_app
from callboard.cli.gateway import gateway_app
from callboard.cli.log import log_app
from callboard.cli.mqtt import mqtt_app
from callboard.cli.node import node_app
from callboard.cli.pipeline import pipeline_app
from callboard.cli.store import store_app
from callboard.cli.topic import topic_app

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

# typer brings its own copy of click along; these are its two base classes of errors.
_UsageError: Final = cast("type[Exception]", typer.BadParameter.__bases__[0])
_ClickError: Final = cast("type[Exception]", _UsageError.__bases__[0])

app = typer.Typer(
    name="callboard",
    help="Python actors on any number of machines.",
    epilog="Start with: callboard demo",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(node_app, name="node")
app.add_typer(actor_app, name="actor")
app.add_typer(topic_app, name="topic")
app.add_typer(flow_app, name="flow")
app.add_typer(gateway_app, name="gateway")
app.add_typer(log_app, name="log")
app.add_typer(store_app, name="store")
app.add_typer(mqtt_app, name="mqtt")
app.add_typer(pipeline_app, name="pipeline")


def _print_version(value: bool) -> None:  # noqa: FBT001  # typer's callbacks take the option's value
    if value:
        from callboard.cli.version import read_version

        typer.echo(f"callboard {read_version()}")
        raise typer.Exit


@app.callback()
def callboard(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Python actors on any number of machines."""


@app.command()
def demo(
    *,
    seconds: Annotated[float, typer.Option(min=4.0, help="Length of the story.")] = 30.0,
    forever: Annotated[
        bool, typer.Option("--forever", help="Play no story; end with q or Ctrl-C.")
    ] = False,
    plain: Annotated[
        bool, typer.Option("--plain", help="Print lines even in a terminal.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print only the summary, as JSON.")
    ] = False,
) -> None:
    """Watch four nodes lose one of them and heal.

    Nodes A-B-C-D in a line watch this machine. Half-way C is killed; the rest goes on, and the
    last line says what became of every message. In a terminal: k kills a node, p freezes one,
    c cuts a link, q ends. The exit code is 0 when the balance is exact.

    \b
    Examples:
      callboard demo
      callboard demo --forever
      callboard demo --seconds 10 --json | jq .down_ms
    """  # noqa: D301  # \b is typer's mark for lines that stay as they are
    from callboard.demo.options import DemoOptions
    from callboard.demo.run import run

    options = DemoOptions(seconds=seconds, forever=forever, as_json=as_json, plain=plain)
    raise typer.Exit(run(options))


@app.command()
def replay(
    seed: Annotated[int, typer.Argument(help="The seed that the failed test printed.")],
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the outcome as JSON; pytest's goes to stderr.")
    ] = False,
) -> None:
    """Run a test that failed in a simulation again, with the same events.

    Looks for .callboard/failures/SEED.json here and in the folders above, runs that test with
    that seed, and says whether its events were those of the run that failed. The exit code is
    0 when the test passes, 1 when it fails.

    \b
    Examples:
      callboard replay 1234
      callboard replay 1234 --json | jq .same_events
    """  # noqa: D301
    from callboard.cli.replaying import replay_seed

    raise typer.Exit(replay_seed(seed, as_json=as_json))


@app.command()
def new(
    folder: Annotated[Path, typer.Argument(metavar="NAME", help="The folder to make.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Make a small project: an actor, its tests, a Makefile, a configuration.

    Its tests pass: callboard new myapp && cd myapp && make test

    \b
    Examples:
      callboard new myapp
      callboard new projects/till --json
    """  # noqa: D301
    from callboard.cli.creating import create

    made = [str(path) for path in create(folder)]
    if as_json:
        from callboard.cli.values import to_json

        typer.echo(to_json({"folder": str(folder), "files": made}))
    else:
        typer.echo("\n".join([*made, f"next: cd {folder} && make test"]))


@app.command()
def doctor(
    peers: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ADDRESS]...", help="Nodes that are to be reached."),
    ] = None,
    *,
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="See that a node could listen there."),
    ] = None,
    as_json: AsJson = False,
    secret_file: SecretFile = None,
    tls: TlsFolder = None,
) -> None:
    """Look for what would trouble a node on this machine, and say what to do.

    Each line is ok, warn or fail; the exit code is 1 when one is fail.

    \b
    Examples:
      callboard doctor
      callboard doctor --listen 0.0.0.0:4222 basp://10.0.0.2:4222
      callboard doctor --json | jq '.[] | select(.status != "ok")'
    """  # noqa: D301
    from callboard.cli import doctor as work
    from callboard.cli.values import to_json

    proof = read_credentials(secret_file, tls)
    found = work.examine(listen=listen, peers=peers or [], credentials=proof)
    typer.echo(to_json(found) if as_json else work.report(found))
    raise typer.Exit(FAILED if any(finding.status == "fail" for finding in found) else 0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    try:
        outcome: Any = app(arguments, standalone_mode=False)
    except Failure as failure:
        return max(_complain(line, failure.code) for line in failure.lines)
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error, file=sys.stderr)  # noqa: T201  # the whole help: it is the next step
            return MISUSED
        return _complain(_usage(error), MISUSED)
    except _ClickError as error:
        return _complain(str(error), FAILED)
    except (KeyboardInterrupt, typer.Abort):
        return _complain("interrupted; run it again to start over", 130)
    except BrokenPipeError:
        sys.stdout = None  # nobody reads: nothing to flush at the exit
        return FAILED
    except Exception as error:
        from actors.errors import CallboardError

        if not isinstance(error, CallboardError):
            raise
        return _complain(explain(error), MISUSED if isinstance(error, ValueError) else FAILED)
    return outcome if isinstance(outcome, int) else 0


def _usage(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "callboard"
    text = getattr(error, "format_message", lambda: str(error))().rstrip(".")
    return (
        f"{text}; try: {path} --help" if text else f"a command is missing; try: {path} --help"
    )


def _complain(text: str, code: int) -> int:
    print(f"callboard: {one_line(text)}", file=sys.stderr)  # noqa: T201
    return code
