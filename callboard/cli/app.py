"""The command line without the code of its commands.

`--help` needs only the imports of this module. The module of a noun is imported when the noun
is used, and the code of a command when the command runs.
"""

import sys
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, cast

import typer
from typer.core import TyperGroup

from callboard.cli.cli_error import FAILED, MISUSED, CliError, explain, one_line
from callboard.cli.options import AccessOptions, JsonOptions, command, flag, option
from callboard.cli.output import say
from callboard.cli.own_node import DashboardOptions
from callboard.support.dataclass import dataclass
from callboard.support.platform.release import RELEASE, build_id
from callboard.support.slots import COMMANDS

#: Command groups; the slot `COMMANDS` has their commands.
NOUNS: Final = {
    "node": "Run, inspect and stop nodes.",
    "cluster": "Inspect all nodes together.",
    "actor": "Send messages to actors.",
    "topic": "Publish and subscribe.",
    "entity": "Inspect entities and their events, and move them.",
    "queue": "Inspect work queues, and requeue or discard dead jobs.",
    "flow": "Serve files as flows, send and receive flows.",
    "gateway": "Run gateways: modules connected by a configuration.",
    "log": "Inspect logs.",
    "store": "Read and write stores.",
    "mqtt": "Run and inspect an MQTT router.",
    "pipeline": "Run queries over logs with Spark.",
    "zeek": "Connect to Zeek.",
    "compat": "Run unchanged programs of other packages.",
}

# typer contains its own copy of click; these are its two base classes of errors.
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


class LazyGroup(TyperGroup):
    """A group of commands whose module is imported at the first use."""

    _loaded: MutableMapping[str, Any] | None = None

    @property
    def commands(self) -> MutableMapping[str, Any]:
        """The commands by name."""
        if self._loaded is None:
            module = COMMANDS.load(str(self.name))
            self._loaded = typer.main.get_group(module.app).commands
        return self._loaded

    @commands.setter
    def commands(self, _: MutableMapping[str, Any]) -> None:
        """Ignore the value: the base class sets an empty one."""


def whole() -> TyperGroup:
    """Return the command line with all groups."""
    group = cast(TyperGroup, typer.main.get_command(app))
    for name, text in NOUNS.items():
        noun = LazyGroup(name=name, help=text, no_args_is_help=True, rich_markup_mode=None)
        group.add_command(noun, name)
    return group


def read_version() -> str:
    """Return the version of the package, and its build if known."""
    build = build_id()
    return f"{RELEASE} ({build})" if build else RELEASE


def _print_version(value: bool) -> None:  # noqa: FBT001  # typer's callbacks take the option's value
    """Print the version and exit."""
    if value:
        say(f"callboard {read_version()}")
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


@dataclass(frozen=True, kw_only=True)
class DemoCommandOptions:
    """Options of the demo."""

    seconds: float = option(30.0, "Length of the demo in seconds.", min=4.0)
    forever: bool = flag("Run without a script; end with q or Ctrl-C.", "--forever")
    plain: bool = flag("Print lines even in a terminal.", "--plain")
    as_json: bool = flag("Print only the summary, as JSON.", "--json")


@command(app)
def demo(options: DemoCommandOptions) -> int:
    """Watch four nodes lose one of them and heal.

    Nodes A-B-C-D in a line monitor this machine. Halfway C is killed; the others continue, and
    the last line accounts for every message. In a terminal: k kills a node, p freezes one, c
    cuts a link, q quits. The exit code is 0 if the numbers add up.

    \b
    Examples:
      callboard demo
      callboard demo --forever
      callboard demo --seconds 10 --json | jq .down_ms
    """  # noqa: D301  # \b is typer's mark for preformatted lines
    from callboard.demo.run import run
    from callboard.demo.story import DemoOptions

    return run(DemoOptions(**vars(options)))


@command(app)
def dashboard(options: DashboardOptions) -> None:
    """Watch a running cluster in a browser; print the link to the page.

    The link contains a token: anyone with the link sees all that this node may see. The page is
    read-only unless --allow-actions is given. Needs the extra dashboard.

    \b
    Examples:
      callboard dashboard
      callboard dashboard --join basp://10.0.0.1:4222 --secret-file cluster.secret
      callboard dashboard --allow-actions --app shop.py --json
    """  # noqa: D301
    from callboard.cli.work.dashboard import serve

    serve(options)


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(JsonOptions):
    """Output of a replay."""

    trace: bool = flag("Print all events: virtual time in seconds, place, event.")
    twice: bool = flag("Run it twice, and print the first event that differs.")
    as_json: bool = flag("Print the result as JSON; pytest prints to stderr.", "--json")


@command(app)
def replay(
    seed: Annotated[
        str, typer.Argument(help="The seed that the failed test printed, or FILE::TEST.")
    ],
    options: ReplayOptions,
    test: Annotated[str, typer.Argument(help="FILE::TEST, if it is not known.")] = "",
) -> int:
    """Rerun a test that failed in a simulation, with the same events.

    Searches .callboard/failures and .callboard/seeds, here and in the parent folders, for the
    test of the seed. Runs it with the seed, and reports whether its events equal those of the
    failed run. With FILE::TEST, that test runs with the seed. FILE alone is a printed program.
    The exit code is 0 if the test passes, 1 if it fails.

    \b
    Examples:
      callboard replay 1234
      callboard replay 1234 test_shop.py::test_orders --trace
      callboard replay test_seed_1234.py
      callboard replay 1234 --json | jq .same_events
    """  # noqa: D301
    from callboard.cli.work.replay import replay as replay_test

    return replay_test(seed, test, options, has_trace=options.trace, is_twice=options.twice)


@command(app)
def new(
    folder: Annotated[Path, typer.Argument(metavar="NAME", help="The folder to create.")],
    options: JsonOptions,
) -> None:
    """Create a small project: an actor, its tests, a Makefile, a configuration.

    Its tests pass: callboard new myapp && cd myapp && make test

    \b
    Examples:
      callboard new myapp
      callboard new projects/till --json
    """  # noqa: D301
    from callboard.cli.work.new import create

    paths = [str(path) for path in create(folder)]
    row = {"folder": str(folder), "files": paths}
    options.say(row, "\n".join([*paths, f"next: cd {folder} && make test"]))


@dataclass(frozen=True, kw_only=True)
class BackupOptions(AccessOptions):
    """Timeout of the connection with a node."""

    timeout: float = option(5.0, "Seconds to reach the node.", min=0.001)


@command(app)
def backup(
    source: Annotated[
        str,
        typer.Argument(
            metavar="ADDRESS|FOLDER|verify",
            help="A node of this machine, a folder that no node uses, or the word verify.",
        ),
    ],
    target: Annotated[
        Path, typer.Argument(metavar="TARGET", help="The new folder of the backup.")
    ],
    options: BackupOptions,
) -> None:
    """Back up a running node, as one cut, into a new folder; or check a backup.

    The backup contains entities and stores in SQLite, and logs, journals of MQTT included. The
    node must run on this machine, and its user must be able to write to the folder. A backup is
    complete when its folder has this name; until then the name ends with .partial.

    With verify, every file of a backup is checked; the exit code is 1 if one is damaged.

    \b
    Examples:
      callboard backup basp://127.0.0.1:4222 /var/backups/shop-2026-11-30
      callboard backup /srv/callboard/shop/data /var/backups/shop-2026-11-30
      callboard backup verify /var/backups/shop-2026-11-30
      callboard backup verify /var/backups/shop-2026-11-30 --json | jq .time
    """  # noqa: D301
    from callboard.cli.work import backup as work

    if source == "verify":
        work.check(target, options)
    else:
        work.back_up(source, target, options, options.timeout)


@command(app)
def restore(
    source: Annotated[Path, typer.Argument(metavar="TARGET", help="The folder of a backup.")],
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="The new folder, missing or empty.")
    ],
    options: JsonOptions,
) -> None:
    """Make a new folder from a backup, for nodes that are started there.

    Each file is checked while it is copied. The restored data is marked as such: nodes that
    still have the former data cannot share entities with nodes that have the restored data.

    \b
    Examples:
      callboard restore /var/backups/shop-2026-11-30 /srv/callboard/shop/data
      callboard restore /var/backups/shop-2026-11-30 data --json | jq .parts
    """  # noqa: D301
    from callboard.cli.work import backup as work

    work.restore_into(source, folder, options)


@dataclass(frozen=True, kw_only=True)
class DoctorOptions(AccessOptions):
    """Additional checks."""

    listen: str | None = option(
        None, "Check that a node could listen there.", metavar="HOST:PORT"
    )
    permissions: Path | None = option(
        None, "Print which logs the named secrets may read.", metavar="FILE.toml"
    )
    certificates: Path | None = option(
        None, "Check a server's certificate there, and its expiry.", metavar="FOLDER"
    )


@command(app)
def doctor(
    options: DoctorOptions,
    peers: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ADDRESS]...", help="Nodes and log servers (grpc://) to contact."
        ),
    ] = None,
) -> int:
    """Check this machine for problems of a node, and suggest remedies.

    For nodes and log servers it lists the logs that they serve to you, and their problems. Each
    line is ok, warn or fail; the exit code is 1 if one is fail.

    \b
    Examples:
      callboard doctor
      callboard doctor --listen 0.0.0.0:4222 basp://10.0.0.2:4222
      callboard doctor grpc+tls://10.0.0.2:8815 --secret-file billing.secret --tls tls
      callboard doctor --permissions peers.toml --certificates tls
      callboard doctor --json | jq '.[] | select(.status != "ok")'
    """  # noqa: D301
    from callboard.cli.work import doctor as work

    findings = work.examine(
        listen=options.listen,
        peers=peers or [],
        access=options,
        permissions=options.permissions,
        certificates=options.certificates,
    )
    options.say(findings, work.report(findings))
    return FAILED if any(finding.status == "fail" for finding in findings) else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    try:
        outcome: Any = whole()(arguments, standalone_mode=False)
    except CliError as failure:
        return max(_complain(line, failure.code) for line in failure.lines)
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error, file=sys.stderr)  # noqa: T201  # the help text is the next step
            return MISUSED
        return _complain(_usage(error), MISUSED)
    except _ClickError as error:
        return _complain(str(error), FAILED)
    except (KeyboardInterrupt, typer.Abort):
        return _complain("interrupted; run it again to start over", 130)
    except BrokenPipeError:
        sys.stdout = None  # the reader has closed the pipe; a flush at exit would fail again
        return FAILED
    except Exception as error:
        from callboard.commitlog import LogError
        from callboard.kernel.errors import CallboardError
        from callboard.pipeline.errors import PipelineError

        # An OSError concerns a file, folder or address that the user named. A UnicodeError
        # comes from arguments in another encoding.
        typed = CallboardError | LogError | PipelineError | OSError | UnicodeError
        if not isinstance(error, typed):
            raise
        return _complain(explain(error), MISUSED if isinstance(error, ValueError) else FAILED)
    return outcome if isinstance(outcome, int) else 0


def _usage(error: Exception) -> str:
    """Return a usage error as one line that refers to the help."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "callboard"
    text = getattr(error, "format_message", lambda: str(error))().rstrip(".")
    return f"{text or 'a command is missing'}; try: {path} --help"


def _complain(text: str, code: int) -> int:
    """Print a line to standard error; return the exit code."""
    print(f"callboard: {one_line(text)}", file=sys.stderr)  # noqa: T201
    return code
