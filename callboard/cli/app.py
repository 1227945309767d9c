"""The command line without the work of its commands.

What is imported here is all that `--help` costs: the file of a noun is loaded when the noun is
named, that of a command when it runs.
"""

import sys
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, cast

import typer
from typer.core import TyperGroup

from callboard.cli.options import AccessOptions, JsonOptions, command, flag, option
from callboard.cli.output import say
from callboard.cli.own_node import DashboardOptions
from callboard.cli.problem import FAILED, MISUSED, Problem, explain, one_line
from callboard.support.dataclass import dataclass
from callboard.support.release import RELEASE, build_id
from callboard.support.slots import COMMANDS

#: What there is beside the commands of this file; the slot `COMMANDS` has the commands.
NOUNS: Final = {
    "node": "Run nodes, see into them, end them.",
    "cluster": "Look at all nodes at once.",
    "actor": "Talk to actors.",
    "topic": "Publish and subscribe.",
    "entity": "Look at entities and their events, and move them.",
    "flow": "Serve files as flows, send and take flows.",
    "gateway": "Run gateways: modules that are linked by a configuration.",
    "log": "Look into logs.",
    "store": "Read and write stores.",
    "mqtt": "Run an MQTT router, and see into it.",
    "pipeline": "Run queries over logs with Spark.",
    "zeek": "Have Zeeks as neighbours.",
    "compat": "Run programs written for other packages, as they are.",
}

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


class Noun(TyperGroup):
    """The commands of a noun, whose file is loaded when they are looked for."""

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
        """Leave them unloaded; the base class sets none."""


def whole() -> TyperGroup:
    """Return the command line with all nouns."""
    group = cast(TyperGroup, typer.main.get_command(app))
    for name, text in NOUNS.items():
        noun = Noun(name=name, help=text, no_args_is_help=True, rich_markup_mode=None)
        group.add_command(noun, name)
    return group


def read_version() -> str:
    """Return the version of the package, and its build where one is known."""
    build = build_id()
    return f"{RELEASE} ({build})" if build else RELEASE


def _print_version(value: bool) -> None:  # noqa: FBT001  # typer's callbacks take the option's value
    """Print the version and end."""
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
    """How the demo plays."""

    seconds: float = option(30.0, "Length of the story.", min=4.0)
    forever: bool = flag("Play no story; end with q or Ctrl-C.", "--forever")
    plain: bool = flag("Print lines even in a terminal.", "--plain")
    as_json: bool = flag("Print only the summary, as JSON.", "--json")


@command(app)
def demo(options: DemoCommandOptions) -> int:
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
    from callboard.demo.run import run
    from callboard.demo.story import DemoOptions

    return run(DemoOptions(**vars(options)))


@command(app)
def dashboard(options: DashboardOptions) -> None:
    """Watch a running cluster in a browser; prints the link that opens the page.

    The link holds a token: whoever has it sees what the rights of this node let it see. It only
    looks, unless --allow-actions is given. Needs the extra dashboard.

    \b
    Examples:
      callboard dashboard
      callboard dashboard --join basp://10.0.0.1:4222 --secret-file cluster.secret
      callboard dashboard --allow-actions --app shop.py --json
    """  # noqa: D301
    from callboard.cli.work.window import serve

    serve(options)


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(JsonOptions):
    """How the outcome of a replay is printed."""

    trace: bool = flag("Print all events: virtual seconds, where, what.")
    twice: bool = flag("Run it twice, and tell the first event that differs.")
    as_json: bool = flag("Print the outcome as JSON; pytest's goes to stderr.", "--json")


@command(app)
def replay(
    seed: Annotated[
        str, typer.Argument(help="The seed that the failed test printed, or FILE::TEST.")
    ],
    options: ReplayOptions,
    test: Annotated[str, typer.Argument(help="FILE::TEST, where it is not known.")] = "",
) -> int:
    """Run a test that failed in a simulation again, with the same events.

    Looks for the test of the seed in .callboard/failures and .callboard/seeds, here and in the
    folders above, runs it with that seed, and says whether its events were those of the run
    that failed. With FILE::TEST any test lives that seed. FILE alone is a printed program. The
    exit code is 0 when the test passes, 1 when it fails.

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
    folder: Annotated[Path, typer.Argument(metavar="NAME", help="The folder to make.")],
    options: JsonOptions,
) -> None:
    """Make a small project: an actor, its tests, a Makefile, a configuration.

    Its tests pass: callboard new myapp && cd myapp && make test

    \b
    Examples:
      callboard new myapp
      callboard new projects/till --json
    """  # noqa: D301
    from callboard.cli.work.new import create

    made = [str(path) for path in create(folder)]
    row = {"folder": str(folder), "files": made}
    options.say(row, "\n".join([*made, f"next: cd {folder} && make test"]))


@dataclass(frozen=True, kw_only=True)
class DoctorOptions(AccessOptions):
    """What is examined beside this machine."""

    listen: str | None = option(
        None, "See that a node could listen there.", metavar="HOST:PORT"
    )
    permissions: Path | None = option(
        None, "Tell which logs the named secrets may read.", metavar="FILE.toml"
    )
    certificates: Path | None = option(
        None, "See whether a door's certificate there is good, and how long.", metavar="FOLDER"
    )


@command(app)
def doctor(
    options: DoctorOptions,
    peers: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ADDRESS]...", help="Nodes and servers of logs (grpc://) to be reached."
        ),
    ] = None,
) -> int:
    """Look for what would trouble a node on this machine, and say what to do.

    Of nodes and servers of logs it tells which logs they serve to who asks, and what is wrong
    about them. Each line is ok, warn or fail; the exit code is 1 when one is fail.

    \b
    Examples:
      callboard doctor
      callboard doctor --listen 0.0.0.0:4222 basp://10.0.0.2:4222
      callboard doctor grpc+tls://10.0.0.2:8815 --secret-file billing.secret --tls tls
      callboard doctor --permissions peers.toml --certificates tls
      callboard doctor --json | jq '.[] | select(.status != "ok")'
    """  # noqa: D301
    from callboard.cli.work import doctor as work

    found = work.examine(
        listen=options.listen,
        peers=peers or [],
        access=options,
        permissions=options.permissions,
        certificates=options.certificates,
    )
    options.say(found, work.report(found))
    return FAILED if any(finding.status == "fail" for finding in found) else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    try:
        outcome: Any = whole()(arguments, standalone_mode=False)
    except Problem as failure:
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
        from callboard.commitlog import LogError
        from callboard.kernel.errors import CallboardError
        from callboard.pipeline.errors import PipelineError

        # An OSError is of what the user named: a file, a folder, an address. Text that is no
        # Unicode comes from the shell.
        typed = CallboardError | LogError | PipelineError | OSError | UnicodeError
        if not isinstance(error, typed):
            raise
        return _complain(explain(error), MISUSED if isinstance(error, ValueError) else FAILED)
    return outcome if isinstance(outcome, int) else 0


def _usage(error: Exception) -> str:
    """Return a wrong use as one line that leads to the help."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "callboard"
    text = getattr(error, "format_message", lambda: str(error))().rstrip(".")
    return f"{text or 'a command is missing'}; try: {path} --help"


def _complain(text: str, code: int) -> int:
    """Print a line to the standard error; returns the exit code."""
    print(f"callboard: {one_line(text)}", file=sys.stderr)  # noqa: T201
    return code
