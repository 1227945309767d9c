"""Files that others may have changed: logs, records, statuses, stores, configurations."""

import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from callboard.broker.conf import parse_conf
from callboard.cli.options import read_secret
from callboard.commitlog import CommitLog, LogReader
from callboard.commitlog.verify import verify
from callboard.flow.file_handlers import load_rules
from callboard.flow.protocol.message import Message
from callboard.flow.record_file import RecordFile, read_records
from callboard.gateway.configuration import read_configuration, read_file
from callboard.mqtt.service.config_file import read_config_file
from callboard.operation.configuration import load_configuration
from callboard.pipeline.progress import STATUS, StatusFile, read_status
from callboard.simulation.trace import Dump
from callboard.store.backend.interface import Backend
from callboard.store.backend.registry import make_backend
from tests.fuzz.case import Case
from tests.fuzz.mutation import mutate_bytes

_TEXTS: Final = {
    "node.toml": b'name = "n"\nlisten = "127.0.0.1:0"\njoin = ["basp://h:1"]\n'
    b'drain_timeout = 3.5\n[limits]\nlinks = 5\n[[children]]\nclass = "a:B"\n',
    "mqtt.toml": b'directory = "d"\n[limits]\nreceive_maximum = 10\n[[listeners]]\n'
    b'port = 1883\n[[acl]]\nallow = ["read a/#"]\n[[bridges]]\naddress = "h:1"\n',
    "gateway.json": b'{"modules": [{"name": "a", "loader": {"name": "python", "entrypoint":'
    b' {"module.path": "timer"}}, "args": {"period": 1e3}}], "links": [{"source": "a"}]}',
    "rules.toml": b'[[rule]]\nrule = \'(= stream "raw")\'\nrw = "w"\nfilepat = "{stream}"\n',
    "rules.json": b'[{"rule": "(and (< n 5) true)", "filepat": "x", "attr": {"a": 1.5}}]',
    "broker.conf": b"broker.max-threads = 4\ntopics = [/a, /b]\n",
    "dump.json": b'{"seed": 7, "test": "t", "events": ["a", "b"]}',
    "secret": b"a long secret\n",
}
#: Inputs that are slow or deeply nested for a parser, in place of a value or of everything.
_HOSTILE: Final = (
    b"[" * 5000,
    b'{"a":' * 3000,
    b"a" + b".a" * 3000 + b" = 1",
    b"1" * 6000,
    b"1e999999",
    b"-" + b"9" * 400,
    b"0x" + b"f" * 9000,
    b'"' + b"\\u0000" * 500 + b'"',
    b"\xef\xbb\xbf",
    b"\xff\xfe",
    b"\x00" * 64,
    b"nan",
    b"9999-99-99T99:99:99Z",
    b"(" * 3000,
    b"",
)


class Files:
    """Damages one file of a kind, and lets all that reads it read it."""

    name = "files"

    def make(self, seed: int) -> Case:
        """Return a kind of file, and its damaged bytes."""
        rng = random.Random(seed)
        kind = rng.choice((*_TEXTS, *_MADE))
        return {"kind": kind, "seed": rng.randrange(2**32), "damages": rng.choice((0, 1, 3, 9))}

    def run(self, case: Case) -> int:
        """Read it: values, or a typed error."""
        kind, rng = case["kind"], random.Random(case["seed"])
        with tempfile.TemporaryDirectory(prefix="callboard-fuzz-") as place:
            folder = Path(place)
            if kind in _TEXTS:
                path = folder / kind
                path.write_bytes(_TEXTS[kind])
                read = _READ[kind]
            else:
                make, read = _MADE[kind]
                path = make(folder, rng)
            data = path.read_bytes() if path.is_file() else b""
            for _ in range(case["damages"]):
                data = _damaged(rng, data)
            path.write_bytes(data)
            for each in read:
                _read(each, path)
        return 1


def _damaged(rng: random.Random, data: bytes) -> bytes:
    if rng.random() < 0.6:
        return mutate_bytes(rng, data)
    start = rng.randrange(len(data) + 1)
    end = rng.choice((start, min(len(data), start + rng.randrange(40)), len(data)))
    return rng.choice((b"", data[:start])) + rng.choice(_HOSTILE) + data[end:]


def _read(reader: Callable[[Path], Any], path: Path) -> None:
    try:
        reader(path)
    except OSError:
        pass
    except Exception as error:
        if not type(error).__module__.startswith("callboard."):
            raise


def _cbor(path: Path) -> None:
    for record in LogReader(path.parent).read(on_damage=lambda _: None):
        _read(lambda _, record=record: record.payload, path)


def _write_log(path: Path) -> None:
    with CommitLog(path.parent, sync="none") as log:
        log.append("/t", 1)


def _log(folder: Path, rng: random.Random) -> Path:
    with CommitLog(folder, sync="none", segment_bytes=300) as log:
        for number in range(20):
            log.append_batch([number, {"a": "b" * 20}], topic="/t", key=["k", b"k"])
    return rng.choice(sorted(folder.iterdir()))


def _zio(folder: Path, _: random.Random) -> Path:
    file = RecordFile(folder / "a.zio")
    file.append(
        [Message(label="{}", seqno=number, payload=(b"x" * 30,)) for number in range(5)]
    )
    file.close()
    return folder / "a.zio"


def _store(folder: Path, rng: random.Random) -> Path:
    _open_store(folder / "a.db")
    return rng.choice([path for path in folder.iterdir() if path.stat().st_size])


def _open_store(path: Path) -> None:
    backend = make_backend(Backend.SQLite, {"path": str(path.parent / "a.db")})
    try:
        backend.open(0.0)
    finally:
        backend.close()


def _status(folder: Path, _: random.Random) -> Path:
    StatusFile(folder / "queries" / "q", "q", "log").end("done")
    return folder / "queries" / "q" / STATUS


def _gateway(path: Path) -> None:
    read_configuration(read_file(path), folder=path.parent)


_READ: Final[dict[str, list[Callable[[Path], Any]]]] = {
    "node.toml": [lambda path: load_configuration(path, environment={})],
    "mqtt.toml": [read_config_file],
    "gateway.json": [_gateway],
    "rules.toml": [load_rules],
    "rules.json": [load_rules],
    "broker.conf": [lambda path: parse_conf(path.read_bytes().decode(errors="replace"))],
    "dump.json": [Dump.read],
    "secret": [read_secret],
}
_MADE: Final[dict[str, tuple[Any, list[Callable[[Path], Any]]]]] = {
    "log": (_log, [lambda path: verify(path.parent), _cbor, _write_log, _cbor]),
    "records": (
        _zio,
        [
            lambda path: list(read_records(path)),
            lambda path: list(read_records(path, on_damage=lambda _: None)),
            lambda path: RecordFile(path).close(),
        ],
    ),
    "store": (_store, [_open_store]),
    "status": (_status, [lambda path: read_status(path.parents[2])]),
}
