"""The last release and the tree talk: nodes of release n work with those of n-1."""

import io
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from callboard import Actor, Node, handler, message

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

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
    sys.stdin.read()
"""


@message("tests.last_release.Order")
@dataclass(frozen=True)
class Order:
    item: str
    new: str = "default"


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


@pytest.fixture(scope="module")
def release(tmp_path_factory) -> Path:
    """Unpack the tree of the last release."""
    tag = last_tag()
    if not tag:
        pytest.skip("no release yet: git has no tag v*")
    folder = tmp_path_factory.mktemp("release")
    with zipfile.ZipFile(io.BytesIO(git("archive", "--format=zip", tag))) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(params=["secret", "open"])
def peer(release, request) -> Iterator[tuple[str, str | None]]:
    """Run a node of the last release; gives its address and secret."""
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
        yield address, "the same" if request.param == "secret" else None
        child.stdin.close()
        assert child.wait(120) == 0


def test_the_last_release_and_the_tree_talk(peer):
    address, secret = peer
    with Node("tree", secret=secret) as node:
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
