"""Random swaps and crashes between a stored position and its next use: none is silent.

Each case records numbered records, stores a position by one of several owners, then changes
files as an accident would. Afterwards the owner continues. Either it is refused, or it hands
out exactly the records that follow those which it had processed.
"""

import random
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from callboard.commitlog import (
    Archive,
    CommitLog,
    LogCorrupt,
    LogFailed,
    LogReader,
    PositionRefused,
    parse_position,
)
from callboard.commitlog.identity.position import decode_position
from callboard.commitlog.objects.archive import Copier
from callboard.pipeline.bridge import Bridge

#: Errors that tell an operator; the owner reads nothing after them.
TOLD = (PositionRefused, LogCorrupt, LogFailed)


class Case:
    """A log `one` with a processed part, another log `other`, and a stored position.

    The payload of a record is its history: the name of the log, and a number that no other
    record has. Thus equal offsets of different logs or states have different payloads.
    """

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.root, self.rng, self.number = folder, rng, 0
        self.one, self.other = folder / "one", folder / "other"
        self.archive = f"file://{folder}/archive"

    def append(self, folder: Path, count: int) -> None:
        with CommitLog(folder, segment_bytes=self.size) as log:
            for _ in range(count):
                self.number += 1
                log.append("/t", f"{folder.name} {self.number}")

    def prepare(self) -> None:
        """Record both logs, in one or several runs of their writers."""
        self.size = self.rng.choice([400, 1 << 20])
        for folder in (self.one, self.other):
            for _ in range(self.rng.randint(1, 3)):
                self.append(folder, self.rng.randint(1, 40))
        self.backup = self.root / "backup"
        shutil.copytree(self.one, self.backup)
        if self.rng.random() < 0.7:
            self.append(self.one, self.rng.randint(0, 40))

    def truth(self, folder: Path) -> list[str]:
        return [
            record.payload for record in LogReader(folder).read(0, on_damage=lambda _: None)
        ]

    # --- accidents ---

    def swap_path(self) -> None:
        """The path of the log names another log."""
        shutil.rmtree(self.one)
        self.other.rename(self.one)

    def remake(self) -> None:
        """The log is removed, and recorded anew."""
        shutil.rmtree(self.one)

    def restore(self) -> None:
        """An older copy of the folder is put in its place."""
        shutil.rmtree(self.one)
        self.backup.rename(self.one)

    def restore_in_place(self) -> None:
        """The files of an older copy are written over those of the folder."""
        for path in [*self.one.glob("*.log"), *self.one.glob("*.index")]:
            path.unlink()
        for path in self.backup.iterdir():
            if path.is_file():
                (self.one / path.name).write_bytes(path.read_bytes())

    def cut_tail(self) -> None:
        """The machine crashes, and the last records were not on the disk."""
        last = max(self.one.glob("*.log"))
        data = last.read_bytes()
        last.write_bytes(data[: self.rng.randint(0, len(data))])
        (self.one / "synced").unlink()

    def nothing(self) -> None:
        """Nothing happens: the control."""

    accidents = (swap_path, remake, restore, restore_in_place, cut_tail, nothing)


class TextOwner:
    """A program that stores `str(position)`, as Spark's checkpoint stores its fields."""

    def __init__(self, case: Case) -> None:
        self.case, self.file = case, case.root / "position"

    def take(self, count: int) -> list[str]:
        log = LogReader(self.case.one)
        start = 0
        if self.file.exists():
            start = log.resume(self.file.read_text() or parse_position("")).offset
        records = log.readv(start, count).records
        end = start + len(records)
        self.file.write_text(str(log.position(end)))
        return [record.payload for record in records]

    def swap(self) -> None:
        """The position of another log takes the place of this one."""
        end = LogReader(self.case.other).end
        position = LogReader(self.case.other).position(self.case.rng.randint(1, end))
        self.file.write_text(str(position))


class FollowerOwner(TextOwner):
    """A follower whose position a program stores."""

    def take(self, count: int) -> list[str]:
        log = LogReader(self.case.one)
        start = decode_position(self.file.read_bytes()) if self.file.exists() else 0
        follower = log.follow(start, timeout=0)
        records = follower.poll(count)
        self.file.write_bytes(follower.position.encode())
        return [record.payload for record in records]

    def swap(self) -> None:
        self.file.write_bytes(LogReader(self.case.other).position(1).encode())


class NamedOwner:
    """A named reader, whose place is in the folder of the log."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def take(self, count: int) -> list[str]:
        with LogReader(self.case.one).reader("r") as reader:
            records = reader.poll(count)
            reader.commit()
        self.keep()
        return [record.payload for record in records]

    def keep(self) -> None:
        shutil.copytree(self.case.one / "readers", self.case.root / "kept", dirs_exist_ok=True)

    def put_back(self) -> None:
        """The place outlives the accident, like a place on another disk."""
        target = self.case.one / "readers"
        shutil.copytree(self.case.root / "kept", target, dirs_exist_ok=True)

    def swap(self) -> None:
        with LogReader(self.case.other).reader("r") as reader:
            reader.poll(self.case.rng.randint(1, 20))
            reader.commit()
        shutil.copytree(
            self.case.other / "readers", self.case.root / "kept", dirs_exist_ok=True
        )


class BridgeOwner(TextOwner):
    """A bridge that passes results on."""

    def publish_batch(self, *batch: tuple[str, str]) -> None:
        self.taken += [payload for _, payload in batch]

    def take(self, count: int) -> list[str]:
        self.taken: list[str] = []
        with Bridge(self.case.one, endpoint=self, place=self.file) as bridge:
            pass
        if bridge.failure is not None:
            raise bridge.failure
        return self.taken

    def swap(self) -> None:
        self.file.write_bytes(LogReader(self.case.other).position(1).encode())


OWNERS = (TextOwner, FollowerOwner, NamedOwner, BridgeOwner)


def run(folder: Path, seed: int) -> str:
    """Play one case; return what happened to it. It fails if a mix-up is silent."""
    rng = random.Random(seed)
    case = Case(folder, rng)
    case.prepare()
    owner = rng.choice(OWNERS)(case)
    processed = owner.take(rng.randint(1, 60))
    accident = rng.choice([*Case.accidents, None])
    if accident is None:
        owner.swap()
    else:
        accident(case)
    with suppress(FileNotFoundError, AttributeError):
        owner.put_back()
    if not case.one.exists() or rng.random() < 0.7:  # else the owner is first, or alone
        case.append(case.one, rng.randint(1, 60))
    what = "swapped position" if accident is None else accident.__name__
    try:
        taken = owner.take(1000)
    except TOLD:
        return f"{what}: refused"
    expected = case.truth(case.one)
    assert expected[: len(processed)] == processed, f"seed {seed}, {what}: processed others"
    assert taken == expected[len(processed) :], f"seed {seed}, {what}: skipped or repeated"
    return f"{what}: continued"


@pytest.mark.parametrize("seed", range(24))
def test_no_random_swap_or_crash_is_silent(tmp_path, seed):
    run(tmp_path, seed)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_none_of_many_random_swaps_and_crashes_is_silent(tmp_path):
    outcomes = {run(tmp_path / str(seed), seed) for seed in range(1000, 1150)}
    kinds = {accident.__name__ for accident in Case.accidents} | {"swapped position"}
    assert {outcome.partition(":")[0] for outcome in outcomes} == kinds
    assert {f"{kind}: refused" for kind in kinds - {"nothing"}} <= outcomes
    assert "nothing: refused" not in outcomes


@pytest.mark.parametrize("seed", range(8))
def test_an_archive_is_never_read_with_a_tail_that_does_not_continue_it(tmp_path, seed):
    rng = random.Random(seed)
    case = Case(tmp_path, rng)
    case.size = 400
    case.append(case.one, rng.randint(20, 60))
    shutil.copytree(case.one, tmp_path / "backup")
    case.append(case.one, rng.randint(20, 60))
    assert list(Copier(LogReader(case.one).place, Archive(case.archive).objects()).copy())
    case.append(case.other, rng.randint(50, 150))
    expected = case.truth(case.one)
    assert [r.payload for r in LogReader(case.archive, tail=case.one).read(0)] == expected
    for tail in (case.other, tmp_path / "backup"):
        case.append(tail, rng.randint(1, 90))
        with pytest.raises(TOLD):
            list(LogReader(case.archive, tail=tail).read(0))
