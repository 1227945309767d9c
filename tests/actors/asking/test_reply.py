"""Senders: every class of them answers the questions that the code asks of any sender."""

import ast
from pathlib import Path

import callboard
import callboard.entity.node_entities
import callboard.proxies.node
from callboard.actors.asking.reply import MessageSender, Reply
from callboard.actors.cell import Cell
from callboard.actors.future import Future
from tests.sources import mentioning

ROOT = Path(callboard.__file__).parents[1]
FOLDERS = ("actors", "basp", "callboard", "proxies")
#: What a variable with a sender is called.
SENDERS = {"sender", "asker", "inner", "future", "reply", "waiting", "caller"}
QUESTIONS = {name for name in vars(MessageSender) if not name.startswith("_")}


def senders():
    """Return the classes that derive from `MessageSender`, directly or not."""
    found, new = set(), {MessageSender}
    while new:
        found |= new
        new = {each for known in new for each in known.__subclasses__()} - found
    return found


def test_cells_want_no_reply_and_replies_do():
    assert issubclass(Cell, MessageSender)
    assert not issubclass(Cell, Reply)
    assert Reply().wants_reply
    assert not MessageSender().wants_reply


def test_an_ask_of_this_node_is_named_by_its_future():
    reply = Reply()

    assert (reply.origin, reply.node, reply.sent_id, reply.is_done) == (reply, b"", 0, False)
    assert reply.encoded("x") is None


def test_no_code_probes_a_sender_for_an_attribute():
    """What one class of senders lacks, a new class of senders would lack as well."""
    probes = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for folder in FOLDERS
        for path, tree in mentioning(ROOT / folder, "getattr(", "hasattr(")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("getattr", "hasattr")
        and isinstance(node.args[1], ast.Constant)
        and node.args[1].value in QUESTIONS
        and ast.unparse(node.args[0]).rpartition(".")[2] in SENDERS
    ]
    assert probes == []


def test_every_class_that_accepts_an_outcome_is_a_reply():
    """A class with `set_result` and `mark_handled` is the sender of a message."""
    known = {each.__name__ for each in senders()}
    wrong = [
        f"{path.relative_to(ROOT)}: {node.name}"
        for folder in FOLDERS
        for path, tree in mentioning(ROOT / folder, "def mark_handled")
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and any(getattr(each, "name", "") == "mark_handled" for each in node.body)
        and node.name not in known
        and not any(ast.unparse(base) in ("AnySender", "Protocol") for base in node.bases)
    ]
    assert wrong == []


def test_six_classes_of_the_product_receive_outcomes():
    """`docs/how-it-is-built.md` says when each of them is used."""
    replies = {
        kind for kind in Reply.__subclasses__() if kind.__module__.startswith("callboard.")
    }
    assert {kind.__name__ for kind in replies} == {
        *("Future", "RemoteReply", "CachedReply", "DeferredReply", "PendingMessage", "External")
    }
    assert not [kind for reply in replies - {Future} for kind in reply.__subclasses__()]
