"""The last release and the tree talk: nodes of release n work with those of n-1."""

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from callboard import Actor, Node, StreamQuery, handler, message
from callboard.errors import UnknownMessageType
from callboard.proxies.errors import LinkError

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
#: A tree of release 0.1, whose links are not sealed: it stands in until there is a tag.
FIRST_TREE = "a95cf891"

# Runs on the last release: nothing but what every release has.
PROGRAM = """
import sys
from dataclasses import dataclass
from callboard import Actor, Node, handler, message
import callboard

@message("tests.last_release.Order")
@dataclass(frozen=True)
class Order:
    item: str
    old: int = 1

class Shop(Actor):
    def __init__(self):
        self.total = 0

    @handler
    def order(self, msg: Order) -> Order:
        self.total += msg.old
        return msg

    @handler
    def text(self, msg: str) -> str:
        return msg.upper()

    def add(self, number):
        return number + 1

class Asker(Actor):
    def __init__(self, other):
        self.other = other

    @handler
    async def order(self, msg: Order) -> Order:
        return await self.other.ask(msg)

secret = "the same" if sys.argv[1] == "secret" else None
with Node("last", spawnable={"shop": Shop, "asker": Asker}, secret=secret) as node:
    node.listen()
    node.register("shop", node.spawn(Shop))
    print(node.address, callboard.__file__, flush=True)
    for address in sys.stdin:
        try:
            print(node.remote_actor(address.strip() + "/shop").ask("hi").result(5), flush=True)
        except Exception as error:
            print(error, flush=True)
"""


@message("tests.last_release.Order")
@dataclass(frozen=True)
class Order:
    item: str
    new: str = "default"


@message("tests.last_release.Orders")
@dataclass(frozen=True)
class Orders(StreamQuery[Order]):
    pass


class Shop(Actor):
    @handler
    def order(self, msg: Order) -> Order:
        return msg


def git(*arguments: str) -> bytes:
    return subprocess.run(
        ["git", "-C", ROOT, *arguments], capture_output=True, check=True, timeout=120
    ).stdout


def last_tag() -> str:
    """Return the newest release that the tree stands on; "" when there is none."""
    try:
        tags = git("tag", "--list", "v*", "--merged", "HEAD", "--sort=-version:refname")
    except (OSError, subprocess.SubprocessError):
        return ""
    return (tags.decode().split() or [""])[0]


def has_first_tree() -> bool:
    """Return whether git has the tree of release 0.1: not in a shallow clone."""
    try:
        git("cat-file", "-e", f"{FIRST_TREE}^{{tree}}")
    except (OSError, subprocess.SubprocessError):
        return False
    return True


@pytest.fixture(scope="module", params=["last tag", "first"])
def release(request, tmp_path_factory) -> Path:
    """Unpack the tree of the last release, or of release 0.1."""
    tag = FIRST_TREE if request.param == "first" else last_tag()
    if not tag:
        pytest.skip("no release yet: git has no tag v*")
    if tag == FIRST_TREE and not has_first_tree():
        pytest.skip("git does not have the tree of release 0.1")
    folder = tmp_path_factory.mktemp("release")
    # Not as zip: its reader makes files of the links between the folders.
    with tarfile.open(fileobj=io.BytesIO(git("archive", "--format=tar", tag))) as archive:
        archive.extractall(folder, filter="tar")
    return folder


@pytest.fixture
def peer(process) -> tuple[str, str | None]:
    """Run a node of the last release; gives its address and secret."""
    return process[:2]


@pytest.fixture(params=["secret", "open"])
def process(release, request) -> Iterator[tuple[str, str | None, subprocess.Popen]]:
    """Run a node of the last release; gives its address, its secret, and its process."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, request.param],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=release,
        env={**os.environ, "PYTHONPATH": str(release)},
    ) as child:
        address, path = child.stdout.readline().split()
        assert Path(path).is_relative_to(release)  # and not the tree
        yield address, "the same" if request.param == "secret" else None, child
        child.stdin.close()
        assert child.wait(120) == 0


def test_the_last_release_and_the_tree_talk(peer):
    address, secret = peer
    with Node("tree", secret=secret, allow_unsealed=True) as node:
        shop = node.remote_actor(address + "/shop")

        assert shop.ask("hello").result(5) == "HELLO"
        assert shop.proxy().add(2**70).result(5) == 2**70 + 1
        assert shop.ask(Order("tea", "x")).result(5) == Order("tea")

        fresh = node.remote_spawn(address, "shop")
        down = node.monitor(fresh)
        fresh.stop()
        assert down.result(5).reason == "normal"

        asker = node.remote_spawn(address, "asker", node.spawn(Shop))  # asks us back
        assert asker.ask(Order("milk", "y")).result(5) == Order("milk")
        assert node.find("shop").result(5) == shop


def test_a_stream_of_the_last_release_fails_with_a_clear_error(peer):
    address, secret = peer
    with Node("tree", secret=secret, allow_unsealed=True) as node:
        shop = node.remote_actor(address + "/shop")

        with pytest.raises(UnknownMessageType, match="is not registered"):
            list(shop.stream(Orders()))
        assert shop.ask("still there").result(5) == "STILL THERE"


def ask(process, node) -> str:
    """Have the old node dial, and return what it says of it."""
    child = process[2]
    child.stdin.write(node.address + "\n")
    child.stdin.flush()
    return child.stdout.readline().strip()


@pytest.mark.parametrize("allowed", [False, True])
def test_nodes_of_the_first_release_are_linked_as_configured_and_the_log_says_so(
    process, allowed, caplog
):
    address, secret, _ = process
    is_old = FIRST_TREE in last_tag() or not last_tag()
    caplog.set_level("INFO", "callboard")
    with Node("tree", secret=secret, allow_unsealed=allowed) as node:
        node.listen()
        node.register("shop", node.spawn(Shop))
        reply = ask(process, node)  # before our dial: refusals are logged once a second
        try:
            answer = node.remote_actor(address + "/shop", 10).ask("hi").result(10)
        except LinkError as error:
            answer = str(error)
        guards = [link.guard for link in node.links()]

    if secret is None:
        assert (answer, guards) == ("HI", ["none"])
    elif allowed and is_old:
        assert (answer, guards) == ("HI", ["unsealed"])
        assert "is not sealed, as allow_unsealed permits" in caplog.text
    elif is_old:
        assert guards == []
        assert "does not seal links with a secret" in answer
        assert "speaks another version of the protocol" in reply
        assert "does not seal links with a secret" in caplog.text
