"""Errors of commands: one line that ends with the next step, and an exit code.

0 success · 1 failure · 2 wrong usage.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from callboard.support.redaction import redacted
from callboard.support.text import printable

FAILED: Final = 1
MISUSED: Final = 2


class CliError(Exception):
    """A command failed; the text has the reason and the next step."""

    def __init__(self, *, why: str, step: str, code: int = FAILED) -> None:
        super().__init__(one_line(f"{why}; {step}"))
        self.code = code
        self.lines = [str(self)]


class UsageError(CliError):
    """A command was called with wrong arguments."""

    def __init__(self, *, why: str, step: str) -> None:
        super().__init__(why=why, step=step, code=MISUSED)


class CliErrors(CliError):
    """Several errors; each has its own line."""

    def __init__(self, lines: Sequence[str], *, code: int = FAILED) -> None:
        super().__init__(why="; ".join(lines), step="correct them", code=code)
        self.lines = [one_line(line) for line in lines]


def problem_of(error: object, step: str, code: int = FAILED) -> CliError:
    """Return the problem in a text `REASON; STEP`; `step` is the default step."""
    why, _, own_step = str(error).partition(";")
    return CliError(why=why, step=own_step.strip() or step, code=code)


@contextmanager
def explained(
    kinds: type[Exception] | tuple[type[Exception], ...], step: str
) -> Iterator[None]:
    """Turn errors of some types into one line, with `problem_of`.

    A `ValueError` counts as wrong usage, because the user has typed the value.
    """
    try:
        yield
    except kinds as error:
        code = MISUSED if isinstance(error, ValueError) else FAILED
        raise problem_of(error, step, code) from None


def one_line(text: str) -> str:
    """Return a text on one line, with control characters escaped."""
    return printable(redacted(" ".join(text.split())))


def explain(error: Exception) -> str:
    """Return one line for an error of the library, ending with the next step.

    Most texts of the library contain a step after a semicolon. A text from a user's handler
    does not count as one.
    """
    text = one_line(str(error))
    kinds = [kind.__name__ for kind in type(error).__mro__]
    if "PublicAddress" in kinds:
        text = text.partition(";")[0]  # its own step is for Python code
    elif "LinkError" in kinds:
        text = text.rpartition(";")[0] or text
    elif ";" in text and not {"RemoteError", "NodeUnreachable"}.intersection(kinds):
        return text
    step = next((_NEXT_STEPS[kind] for kind in kinds if kind in _NEXT_STEPS), _OTHER_STEP)
    return f"{text}; {step}"


_OTHER_STEP: Final = "see the log of the remote node"

# By name, because importing the classes would load the whole library for each `--help`.
_NEXT_STEPS: Final = {
    "InvalidAddress": "write basp://HOST:PORT/NAME, or basp://HOST:PORT for a node",
    "NodeUnreachable": "start a node there with: callboard node run APP.py --listen HOST:PORT",
    "LinkError": "start both nodes with the same --secret-file and matching --tls",
    "PublicAddress": "use --secret-file or --tls, or --insecure to permit everything to all",
    "NotPermitted": "grant the right on that node (--permissions), or use another secret",
    "NotRegistered": "call node.register(NAME, ref) in setup(node) of its APP.py",
    "AskTimeout": "allow more time with --timeout SECONDS",
    "ResultTimeout": "allow more time with --timeout SECONDS",
    "NoSuchMethod": "use a public method of the actor's class",
    "UnexpectedMessage": "add a @handler for this type, or send another with --app and --type",
    "RemoteError": "see the log of its node for the traceback",
    "ActorDown": "see the log of its node for the reason",
    "InvalidTopic": "use a text of at most 65,535 bytes, for instance /metrics/cpu",
    "DataOverflow": "use numbers of at most 64 bits",
    "InvalidData": "publish JSON, or plain text",
    "NotSerializable": "send plain values, or types registered with @message",
}
