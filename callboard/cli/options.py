"""Options of commands as fields of frozen dataclasses, and what several commands share.

A command is a function whose parameters are arguments, and options objects: `command` makes an
option of each of their fields. What several commands take is said once, in a class that theirs
derive from.
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

from callboard.cli.output import say, to_json
from callboard.cli.problem import Misuse
from callboard.support.dataclass import dataclass
from callboard.support.named_file import read_named
from callboard.support.text import printable

if TYPE_CHECKING:
    from callboard.kernel.tls import Tls
    from callboard.node import Node

SECRET_VARIABLE: Final = "CALLBOARD_SECRET"  # noqa: S105  # the variable's name

Work = TypeVar("Work", bound=Callable[..., Any])


def noun() -> typer.Typer:
    """Return what commands are registered at; the help of nouns is in `callboard.cli.app`."""
    return typer.Typer(rich_markup_mode=None)


def option(default: Any, help: str, *names: str, **more: Any) -> Any:  # noqa: A002  # as typer calls it
    """Return a field of options that is an option of the command.

    Args:
        default: its value when it is not given; `...` for an option that has to be given.
        help: what it is for.
        names: where they are not `--` and the name of the field.
        more: what `typer.Option` takes beside.
    """
    info = typer.Option(*names, help=help, **more)
    given = MISSING if default is ... else default
    return field(default=given, repr=not info.hide_input, metadata={"option": info})


def flag(help: str, *names: str, **more: Any) -> Any:  # noqa: A002  # as typer calls it
    """Return a field of options that is off unless one of its names is given."""
    return option(False, help, *names, **more)  # noqa: FBT003  # the default of a flag


def command(app: typer.Typer, name: str | None = None) -> Callable[[Work], Work]:
    """Return a decorator that registers a function as a command.

    A parameter whose type is a dataclass stands for its fields: each one that
    `option` makes is an option. What the function returns is the exit code; None is 0.

    Args:
        app: of the noun.
        name: of the command, where it is not that of the function.
    """

    def register(function: Work) -> Work:
        app.command(name, cls=_SectionedCommand)(_expanded(function))
        return function

    return register


#: Sections of the help, as panels of options; those of other options come last.
READ, ASKED, RESULTS, RUNS = (
    {"rich_help_panel": title}
    for title in ("What is read", "What is asked", "Where results go", "How it runs")
)
_SECTIONS: Final = [panel["rich_help_panel"] for panel in (READ, ASKED, RESULTS, RUNS)]


class _SectionedCommand(TyperCommand):
    """A command whose help has a section for each panel of its options."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options; in each section what has to be given comes first."""
        found: dict[str, list[tuple[str, str]]] = {}
        for each in sorted(self.get_params(ctx), key=lambda each: not each.required):
            record = each.get_help_record(ctx)
            is_argument = each.param_type_name == "argument"
            panel = "Arguments" if is_argument else getattr(each, "rich_help_panel", None)
            if record is not None:
                found.setdefault(panel or "Options", []).append(record)
        for title in ("Arguments", *_SECTIONS, "Options"):
            if title in found:
                with formatter.section(title):
                    formatter.write_dl(found[title])


def _expanded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with a parameter for each field of the options that one takes."""
    hints = get_type_hints(function, include_extras=True)
    plain: list[inspect.Parameter] = []
    options: list[inspect.Parameter] = []
    made: dict[str, tuple[type[Any], list[str]]] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        kind = hints[name]
        if is_dataclass(kind) and isinstance(kind, type):
            of_class = _options_of(kind)
            made[name] = kind, [each.name for each in of_class]
            options += of_class
        else:
            plain.append(parameter.replace(annotation=kind))

    @functools.wraps(function)
    def run(**given: Any) -> Any:
        for name, (kind, names) in made.items():
            given[name] = kind(**{each: given.pop(each) for each in names})
        return function(**given)

    run.__signature__ = inspect.Signature([*plain, *options])  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in [*plain, *options]}
    return run


def _options_of(kind: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(kind)
    return [
        inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if each.default is MISSING else each.default,
            annotation=Annotated[hints[each.name], each.metadata["option"]],
        )
        for each in fields(kind)
        if "option" in each.metadata
    ]


# --- what several commands take ---


@dataclass(frozen=True, kw_only=True)
class JsonOptions:
    """How a command prints."""

    as_json: bool = flag("Print JSON.", "--json")

    def say(self, row: Any, text: str, *, err: bool = False) -> None:
        """Print a line: a row as JSON for programs, or a text for people.

        Args:
            row: what is told.
            text: the same in words.
            err: on the standard error.
        """
        say(to_json(row) if self.as_json else text, err=err)


@dataclass(frozen=True, kw_only=True)
class LookOptions(JsonOptions):
    """How often a command looks at what runs."""

    interval: float = option(1.0, "Seconds between looks.", min=0.05)
    count: int = option(0, "Looks; 0 goes on until Ctrl-C.", min=0)
    as_json: bool = flag("Print a line of JSON a look.", "--json")

    def looks(self) -> Iterator[int]:
        """Yield the number of each look, from 1, when it is due."""
        for look in itertools.count(1):
            yield look
            if look == self.count:
                return
            time.sleep(self.interval)

    @contextmanager
    def screen(self) -> Iterator[Callable[[Any, str], None]]:
        """Yield what shows a row or its text: drawn in place in a terminal, else printed."""
        if self.as_json or not sys.stdout.isatty():
            yield self.say
            return
        from rich.live import Live
        from rich.text import Text

        with Live(screen=True, auto_refresh=False) as live:

            def draw(_: Any, text: str) -> None:
                lines = printable(text, kept="\n").split("\n")
                lines = lines[: max(1, live.console.height - 2)]
                shown = Text("\n".join([*lines, "Ctrl-C ends"]), no_wrap=True)
                live.update(shown, refresh=True)

            yield draw


@dataclass(frozen=True, slots=True, repr=False)
class Proof:
    """What a command's node proves and demands: shared secret and TLS."""

    secret: list[str] | None = field(default=None, repr=False)
    tls: "Tls | None" = None
    allow_unsealed: bool = False
    encrypt: bool = False


@dataclass(frozen=True, kw_only=True)
class AccessOptions(JsonOptions):
    """What a command's node proves and demands, never on the command line itself.

    Arguments of a process can be read by everybody on its machine, so a secret comes from a
    file or from the environment.
    """

    secret_file: Path | None = option(
        None,
        f"File that holds the shared secret; or set {SECRET_VARIABLE} to the secret.",
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
        "Link with nodes of release 0.1 too, whose links are not sealed.", "--allow-unsealed"
    )
    encrypt: bool = flag(
        "Encrypt links with the shared secret as the key of TLS; needs Python 3.13.",
        "--encrypt",
    )

    def proof(self) -> Proof:
        """Read what the options and the environment name.

        Raises:
            Problem: a file is missing or empty.
        """
        secrets, tls = read_secrets(self.secret_file), read_tls(self.tls)
        return Proof(secrets or None, tls, self.allow_unsealed, self.encrypt)

    def open_node(self, name: str) -> "Node":
        """Make the short-lived node with which a command talks to one that runs: a tool.

        Raises:
            Problem: a file is missing or empty.
            TlsError: a file of the certificates is of no use.
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
        encrypting = BrokerTls.of(Configuration())
        is_plain = proof.tls is None and not proof.encrypt
        if is_plain and encrypting is not None:  # endpoints speak it by default
            node.overlay.find_out_tls(encrypting.for_dialing())
        return node


def read_secret(path: Path | None) -> str | None:
    """Return the first secret that a file holds, or else that of the environment, if any.

    Raises:
        Problem: the file is missing or empty.
    """
    return next(iter(read_secrets(path)), None)


def read_secrets(path: Path | None) -> list[str]:
    """Return the secrets that a file holds, one in a line, or else that of the environment.

    Raises:
        Problem: the file is missing or empty.
    """
    if path is None:
        secret = os.environ.get(SECRET_VARIABLE)
        return [secret] if secret else []
    try:
        text = read_named(path, 1 << 16).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        why = f"the secret cannot be read from {path}: {reason}"
        raise Misuse(why=why, step="name a text file with --secret-file FILE") from error
    lines = [line.strip() for line in text.splitlines()]
    if not any(lines):
        raise Misuse(why=f"{path} is empty", step="write the shared secret into it")
    return [line for line in lines if line]


def read_tls(folder: Path | None) -> "Tls | None":
    """Return the TLS of a folder with PEM files; None for none.

    Raises:
        Problem: the authority's certificate is missing.
    """
    if folder is None:
        return None
    from callboard.kernel.tls import Tls

    authority = folder / "authority.pem"
    if not authority.is_file():
        why = f"{authority} is missing"
        raise Misuse(why=why, step="put the certificate of the cluster's authority there")
    return Tls.of_folder(folder)
