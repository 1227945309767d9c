"""Four clients stream the files of a directory to a file service, and verify checksums.

The directory is this one, or the argument of the program.

Run it with `python examples/flow_files.py`.
"""

import hashlib
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from callboard import Node
from callboard.flow import Flow, FlowBroker
from callboard.flow.file_handlers import FileFactory, FileRule
from callboard.flow.file_service import FileService
from callboard.flow.protocol.rules import Rule

CLIENTS = 4
CHUNK = 16 * 1024


def main(directory: Path) -> int:
    names = [path.relative_to(directory).as_posix() for path in sorted(directory.rglob("*.py"))]
    with tempfile.TemporaryDirectory() as folder, Node("files") as node:
        root = Path(folder)
        service = node.spawn(FileService, folder)
        always = Rule("true")
        rules = [FileRule(always, "w", "{name}.zio"), FileRule(always, "r", "{name}.zio")]
        broker = FlowBroker.bind(
            "basp://127.0.0.1:0", factory=FileFactory(node, service, rules, root), node=node
        )
        with ThreadPoolExecutor(CLIENTS) as pool:
            shares = [names[first::CLIENTS] for first in range(CLIENTS)]
            sent = sum(pool.map(lambda share: send(broker.address, directory, share), shares))
        print(f"{len(names)} files sent by {CLIENTS} clients at once")
        same = sum(is_same(broker.address, directory, name) for name in names)
        print(f"{same} files came back with the same checksum")
        assert sent == sum((directory / name).stat().st_size for name in names)
        return 0 if same == len(names) else 1


def send(address: str, directory: Path, names: list[str]) -> int:
    """One client: a flow for each file, over one node; returns the bytes that were written."""
    written = 0
    with Node("client") as node:
        for name in names:
            about = {"name": name}
            with Flow.connect(address, "extract", attributes=about, node=node) as flow:
                with (directory / name).open("rb") as file:
                    while chunk := file.read(CHUNK):
                        flow.put(chunk)
                written += flow.eot().get("bytes", 0)
    return written


def is_same(address: str, directory: Path, name: str) -> bool:
    """Take a file back and compare checksums."""
    came = hashlib.sha256()
    if (directory / name).stat().st_size:  # of an empty file nothing was written
        with Flow.connect(address, "inject", attributes={"name": name}) as flow:
            for dat in flow:
                came.update(bytes(dat))
    return came.digest() == hashlib.sha256((directory / name).read_bytes()).digest()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent)))
