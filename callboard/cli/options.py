"""Options of commands as fields of frozen dataclasses, and options shared by several commands.

A command is a function whose parameters are arguments and options objects. `command` makes an
option from each field of an options object. Shared options are fields of a base class.
"""

import functools
import inspect
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand

from callboard.cli.cli_error import UsageError
from callboard.cli.output import say, to_json
from callboard.support.dataclass import dataclass
from callboard.support.files.user_file import read_user_file
from callboard.support.text import printable

if TYPE_CHECKING:
    from callboard.node import Node
    from callboard.tls.contexts import Tls

SECRET_VARIABLE: Final = "CALLBOARD_SECRET"  # noqa: S105  # the variable's name

Work = TypeVar("Work", bound=Callable[..., Any])


def noun() -> typer.Typer:
    """Return a group for commands; its help text is in `callboard.cli.app`."""
    return typer.Typer(rich_markup_mode=None)


def option(default: Any, help: str, *names: str, **more: Any) -> Any:  # noqa: A002  # as typer calls it
    """Return a field that becomes an option of the command.

    Args:
        default: the default value; `...` for a required option.
        help: the help text.
        names: names of the option; by default `--` and the name of the field.
        more: further arguments of `typer.Option`.
    """
    info = typer.Option(*names, help=help, **more)
    field_default = MISSING if default is ... else default
    return field(default=field_default, repr=not info.hide_input, metadata={"option": info})


def flag(help: str, *names: str, **more: Any) -> Any:  # noqa: A002  # as typer calls it
    """Return a field that becomes a flag; its default is False."""
    return option(False, help, *names, **more)  # noqa: FBT003  # the default of a flag


def command(app: typer.Typer, name: str | None = None) -> Callable[[Work], Work]:
    """Return a decorator that registers a function as a command.

    A parameter whose type is a dataclass stands for its fields: those made by `option` become
    options. The function returns the exit code; None is 0.

    Args:
        app: group of the command.
        name: the name of the command; by default the name of the function.
    """

    def register(function: Work) -> Work:
        app.command(name, cls=_SectionedCommand)(_expanded(function))
        return function

    return register


#: Sections of the help, as panels of options; options without a panel come last.
READ, ASKED, RESULTS, RUNS = (
    {"rich_help_panel": title}
    for title in ("What is read", "What is asked", "Where results go", "How it runs")
)
_SECTIONS: Final = [panel["rich_help_panel"] for panel in (READ, ASKED, RESULTS, RUNS)]


class _SectionedCommand(TyperCommand):
    """A command whose help has a section for each panel."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options; required ones first in each section."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in sorted(
            self.get_params(ctx), key=lambda parameter: not parameter.required
        ):
            record = parameter.get_help_record(ctx)
            is_argument = parameter.param_type_name == "argument"
            panel = "Arguments" if is_argument else getattr(parameter, "rich_help_panel", None)
            if record is not None:
                sections.setdefault(panel or "Options", []).append(record)
        for title in ("Arguments", *_SECTIONS, "Options"):
            if title in sections:
                with formatter.section(title):
                    formatter.write_dl(sections[title])


def _expanded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with a parameter for each field of the options parameters."""
    hints = get_type_hints(function, include_extras=True)
    plain: list[inspect.Parameter] = []
    options: list[inspect.Parameter] = []
    options_classes: dict[str, tuple[type[Any], list[str]]] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        kind = hints[name]
        if is_dataclass(kind) and isinstance(kind, type):
            parameters = _options_of(kind)
            options_classes[name] = kind, [parameter.name for parameter in parameters]
            options += parameters
        else:
            plain.append(parameter.replace(annotation=kind))

    @functools.wraps(function)
    def run(**values: Any) -> Any:
        for name, (kind, names) in options_classes.items():
            values[name] = kind(**{field: values.pop(field) for field in names})
        return function(**values)

    run.__signature__ = inspect.Signature([*plain, *options])  # type: ignore[attr-defined]
    run.__annotations__ = {item.name: item.annotation for item in [*plain, *options]}
    return run


def _options_of(kind: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(kind)
    return [
        inspect.Parameter(
            item.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if item.default is MISSING else item.default,
            annotation=Annotated[hints[item.name], item.metadata["option"]],
        )
        for item in fields(kind)
        if "option" in item.metadata
    ]


# --- options of several commands ---


@dataclass(frozen=True, kw_only=True)
class JsonOptions:
    """Output format of a command."""

    as_json: bool = flag("Print JSON.", "--json")

    def say(self, row: Any, text: str, *, err: bool = False) -> None:
        """Print a line: JSON for programs, or a text for people.

        Args:
            row: the values.
            text: the same in words.
            err: print to standard error.
        """
        say(to_json(row) if self.as_json else text, err=err)


@dataclass(frozen=True, kw_only=True)
class LookOptions(JsonOptions):
    """Interval and number of the updates of a command that watches something."""

    interval: float = option(1.0, "Seconds between updates.", min=0.05)
    count: int = option(0, "Number of updates; 0 continues until Ctrl-C.", min=0)
    as_json: bool = flag("Print a line of JSON per update.", "--json")

    def updates(self) -> Iterator[int]:
        """Yield the number of each update, from 1, when it is due."""
        for look in itertools.count(1):
            yield look
            if look == self.count:
                return
            time.sleep(self.interval)

    @contextmanager
    def screen(self) -> Iterator[Callable[[Any, str], None]]:
        """Yield a function that shows an update: drawn in place in a terminal, else printed."""
        if self.as_json or not sys.stdout.isatty():
            yield self.say
            return
        from rich.live import Live
        from rich.text import Text

        with Live(screen=True, auto_refresh=False) as live:

            def draw(_: Any, text: str) -> None:
                lines = printable(text, allowed="\n").split("\n")
                lines = lines[: max(1, live.console.height - 2)]
                screen_text = Text("\n".join([*lines, "Ctrl-C ends"]), no_wrap=True)
                live.update(screen_text, refresh=True)

            yield draw


@dataclass(frozen=True, slots=True, repr=False)
class Proof:
    """Credentials of a command's node: shared secrets and TLS."""

    secret: list[str] | None = field(default=None, repr=False)
    tls: "Tls | None" = None
    allow_unsealed: bool = False
    encrypt: bool = False


@dataclass(frozen=True, kw_only=True)
class AccessOptions(JsonOptions):
    """Credentials of a command's node; they cannot be given on the command line itself.

    Every user of a machine can read the arguments of its processes. So a secret comes from a
    file or from the environment.
    """

    secret_file: Path | None = option(
        None,
        f"File with the shared secret; or set {SECRET_VARIABLE} to the secret.",
        "--secret-file",
        metavar="FILE",
        envvar="CALLBOARD_SECRET_FILE",
    )
    tls: Path | None = option(
        None,
        "Folder with authority.pem, and with certificate.pem and key.pem of this node.",
        "--tls",
        metavar="FOLDER",
        envvar="CALLBOARD_TLS",
    )
    allow_unsealed: bool = flag(
        "Also link with nodes of release 0.1, which do not seal links.", "--allow-unsealed"
    )
    encrypt: bool = flag(
        "Encrypt links with the shared secret as the key of TLS; needs Python 3.13.",
        "--encrypt",
    )

    def proof(self) -> Proof:
        """Read the credentials that the options and the environment name.

        Raises:
            CliError: a file is missing or empty.
        """
        secrets, tls = read_secrets(self.secret_file), read_tls(self.tls)
        return Proof(secrets or None, tls, self.allow_unsealed, self.encrypt)

    def open_node(self, name: str) -> "Node":
        """Create the node of this command, a tool that connects to a running node.

        Raises:
            CliError: a file is missing or empty.
            TlsError: a certificate file is unusable.
        """
        from callboard.broker.options import Configuration
        from callboard.broker.tls import BrokerTls
        from callboard.node import Node

        proof = self.proof()
        node = Node(
            name,
            secret=proof.secret,
            tls=proof.tls,
            allow_unsealed=proof.allow_unsealed,
            encrypt=proof.encrypt,
            is_tool=True,
        )
        default_tls = BrokerTls.of(Configuration())
        is_plain = proof.tls is None and not proof.encrypt
        if is_plain and default_tls is not None:  # endpoints use TLS by default
            node.overlay.find_out_tls(default_tls.for_dialing())
        return node


def read_secret(path: Path | None) -> str | None:
    """Return the first secret in a file, or the one in the environment, if any.

    Raises:
        CliError: the file is missing or empty.
    """
    return next(iter(read_secrets(path)), None)


def read_secrets(path: Path | None) -> list[str]:
    """Return the secrets in a file, one per line, or the one in the environment.

    Raises:
        CliError: the file is missing or empty.
    """
    if path is None:
        secret = os.environ.get(SECRET_VARIABLE)
        return [secret] if secret else []
    try:
        text = read_user_file(path, 1 << 16).decode()
    except (OSError, UnicodeDecodeError) as error:
        cause = getattr(error, "strerror", None) or "it is not a text file"
        reason = f"the secret cannot be read from {path}: {cause}"
        raise UsageError(why=reason, step="use a text file with --secret-file FILE") from error
    lines = [line.strip() for line in text.splitlines()]
    if not any(lines):
        raise UsageError(why=f"{path} is empty", step="write the shared secret into it")
    return [line for line in lines if line]


def read_tls(folder: Path | None) -> "Tls | None":
    """Return the TLS settings for a folder with PEM files; None without a folder.

    Raises:
        CliError: the authority's certificate is missing.
    """
    if folder is None:
        return None
    from callboard.tls.contexts import Tls

    authority = folder / "authority.pem"
    if not authority.is_file():
        reason = f"{authority} is missing"
        raise UsageError(
            why=reason, step="put the certificate of the cluster's authority there"
        )
    return Tls.of_folder(folder)
