import pytest

from callboard.actors.errors import (
    AskTimeout,
    CallboardError,
    NodeUnreachable,
    NotRegistered,
    RemoteError,
)
from callboard.cli.cli_error import CliError, explain
from callboard.proxies.errors import PublicAddress


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (AskTimeout("no answer"), "no answer; allow more time with --timeout SECONDS"),
        (NotRegistered("nobody has it; ask another"), "nobody has it; ask another"),
        (
            RemoteError("KeyError", "a;\nb"),
            "KeyError: a; b; see the log of its node for the traceback",
        ),
        (
            PublicAddress("0.0.0.0 is public; pass secret=…"),
            "0.0.0.0 is public; "
            "use --secret-file or --tls, or --insecure to permit everything to all",
        ),
        (CallboardError("odd"), "odd; see the log of the remote node"),
    ],
)
def test_an_error_is_printed_as_one_line_with_the_next_step(error, line):
    assert explain(error) == line


def test_a_node_that_does_not_answer_can_be_started():
    assert explain(NodeUnreachable("gone; is it running?")).endswith(
        "; start a node there with: callboard node run APP.py --listen HOST:PORT"
    )


def test_a_failure_is_reported_in_one_line():
    assert str(CliError(why="a\nb", step="c")) == "a b; c"
