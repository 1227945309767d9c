"""How commands fail: one line that ends with the next step, and an exit code.

0 fine · 1 failed · 2 wrong use.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from callboard.support.redaction import redacted
from callboard.support.text import printable

FAILED: Final = 1
MISUSED: Final = 2


class Problem(Exception):
    """A command cannot go on; the text says why and what the next step is."""

    def __init__(self, *, why: str, step: str, code: int = FAILED) -> None:
        super().__init__(one_line(f"{why}; {step}"))
        self.code = code
        self.lines = [str(self)]


class Misuse(Problem):
    """A command was called in a wrong way."""

    def __init__(self, *, why: str, step: str) -> None:
        super().__init__(why=why, step=step, code=MISUSED)


class Problems(Problem):
    """Several things are wrong; each has a line of its own."""

    def __init__(self, lines: Sequence[str], *, code: int = FAILED) -> None:
        super().__init__(why="; ".join(lines), step="correct them", code=code)
        self.lines = [one_line(line) for line in lines]


def problem_of(error: object, step: str, code: int = FAILED) -> Problem:
    """Return the problem that `WHY; STEP` tells; `step` is the next one where it has none."""
    why, _, own = str(error).partition(";")
    return Problem(why=why, step=own.strip() or step, code=code)


@contextmanager
def explained(
    kinds: type[Exception] | tuple[type[Exception], ...], step: str
) -> Iterator[None]:
    """Turn errors of some kinds into one line, as `problem_of` does.

    One that is a `ValueError` is of what the user has typed, and wrong use.
    """
    try:
        yield
    except kinds as error:
        code = MISUSED if isinstance(error, ValueError) else FAILED
        raise problem_of(error, step, code) from None


def one_line(text: str) -> str:
    """Return a text without line ends, and without what a terminal would obey."""
    return printable(redacted(" ".join(text.split())))


def explain(error: Exception) -> str:
    """Return one line for an error of the library, which ends with the next step.

    Most texts of the library hold one, after a semicolon; the text of somebody's handler does
    not count.
    """
    text = one_line(str(error))
    kinds = [kind.__name__ for kind in type(error).__mro__]
    if "PublicAddress" in kinds:
        text = text.partition(";")[0]  # its own step is for programs
    elif "LinkError" in kinds:
        text = text.rpartition(";")[0] or text
    elif ";" in text and not {"RemoteError", "NodeUnreachable"}.intersection(kinds):
        return text
    step = next((_NEXT_STEPS[kind] for kind in kinds if kind in _NEXT_STEPS), _OTHER_STEP)
    return f"{text}; {step}"


_OTHER_STEP: Final = "see the log of the node that was asked"

# By name: the classes themselves would load the whole library with each `--help`.
_NEXT_STEPS: Final = {
    "InvalidAddress": "write basp://HOST:PORT/NAME, or basp://HOST:PORT for a node",
    "NodeUnreachable": "start a node there with: callboard node run APP.py --listen HOST:PORT",
    "LinkError": "give both nodes the same --secret-file and a fitting --tls",
    "PublicAddress": "use --secret-file or --tls, or --insecure if all may do everything",
    "NotPermitted": "let that node give the right (--permissions), or come as somebody else",
    "NotRegistered": "let setup(node) of its APP.py call node.register(NAME, ref)",
    "AskTimeout": "give it longer with --timeout SECONDS",
    "ResultTimeout": "give it longer with --timeout SECONDS",
    "NoSuchMethod": "name a public method of the actor's class",
    "UnexpectedMessage": "add a @handler for this type, or send another with --app and --type",
    "RemoteError": "see the log of its node for the traceback",
    "ActorDown": "see the log of its node for the reason",
    "InvalidTopic": "a topic is text of at most 65,535 bytes, for instance /metrics/cpu",
    "DataOverflow": "numbers have 64 bits at most",
    "InvalidData": "publish JSON, or plain text",
    "NotSerializable": "send plain values, or types registered with @message",
}
