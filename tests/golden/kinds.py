"""All kinds: modules with `SAMPLES`, `FOLDERS` or both, and `missing()`."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from tests.golden import (
    credentials,
    flows,
    frames,
    gateways,
    log,
    messages,
    mqtt_journal,
    mqtt_packets,
    mqtt_wire,
    payloads,
    spools,
    states,
    stores,
    topics,
    zeek,
)
from tests.golden.sample import Folder, Sample, read_folder

KINDS: tuple[ModuleType, ...] = (
    frames,
    payloads,
    messages,
    topics,
    stores,
    states,
    spools,
    log,
    mqtt_packets,
    mqtt_wire,
    mqtt_journal,
    flows,
    gateways,
    zeek,
    credentials,
)
if find_spec("pyarrow") is not None:
    from tests.golden import pipelines

    KINDS += (pipelines,)


def name_of(kind: ModuleType) -> str:
    return kind.__name__.rpartition(".")[2]


def samples_of(kind: ModuleType) -> dict[str, Sample]:
    return getattr(kind, "SAMPLES", {})


def folders_of(kind: ModuleType) -> dict[str, Folder]:
    return getattr(kind, "FOLDERS", {})


def made(kind: ModuleType, place: Path) -> Iterator[tuple[str, bytes]]:
    """Return what today's code writes; folders are made in an empty place."""
    for name, sample in samples_of(kind).items():
        yield name, sample.write(sample.value)
    for name, folder in folders_of(kind).items():
        (place / name).mkdir()
        folder.make(place / name)
        for path, data in read_folder(place / name):
            yield f"{name}/{path}", data
