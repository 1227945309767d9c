"""Backups of a process under load: acknowledged data is in them; a kill leaves no half one."""

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from callboard.backup import BackupRefused, restore, verify
from callboard.backup.manifest import read_manifest
from tests.callboard.backup.shop import LOG, STATE, Shop
from tests.polling import eventually

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]


class RunningShop:
    """A process that writes numbers, and prints each after it was acknowledged everywhere."""

    def __init__(self, folder: Path) -> None:
        self.output = folder.with_suffix(".out")
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.callboard.backup.shop", str(folder)],
                stdin=subprocess.PIPE,
                stdout=output,
                cwd=ROOT,
            )

    def lines(self) -> list[str]:
        text = self.output.read_text()
        return text[: text.rfind("\n") + 1].splitlines()

    @property
    def last(self) -> int:
        return int(self.lines()[-1]) if len(self.lines()) > 1 else 0

    def wait_for(self, number: int) -> None:
        eventually(lambda: self.last >= number)

    def start_backup(self, target: Path) -> "subprocess.Popen[bytes]":
        address = self.lines()[0]
        command = [sys.executable, "-m", "callboard", "backup", f"127.0.0.1:{address}"]
        return subprocess.Popen([*command, str(target)], cwd=ROOT, stderr=subprocess.PIPE)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningShop]:
    shop = RunningShop(tmp_path / "data")
    yield shop
    shop.kill()


def test_nothing_acknowledged_before_the_backup_is_lost(
    running: RunningShop, tmp_path: Path
) -> None:
    before = []
    for number in range(3):
        running.wait_for(50 * (number + 1))
        before.append(running.last)
        assert running.start_backup(tmp_path / f"backup{number}").wait(60) == 0
    after = running.last
    running.wait_for(after + 20)  # it was not stopped by the backups
    running.kill()

    ends = []
    for number, acknowledged in enumerate(before):
        verify(tmp_path / f"backup{number}")
        restore(tmp_path / f"backup{number}", tmp_path / f"restored{number}")
        shop = Shop(tmp_path / f"restored{number}")
        total, stored = shop.total(), shop.store.get("number")
        payloads = [record.payload for record in shop.log]
        fence = shop.write(total + 1)
        shop.close()
        assert stored <= payloads[-1]  # a put may return before its commit
        assert acknowledged <= payloads[-1] <= total <= payloads[-1] + 1
        assert payloads == list(range(payloads[0], payloads[-1] + 1))
        assert fence == f"Counter/one/{total + 1}~1"
        ends.append(total)
    assert ends == sorted(ends)


def test_a_kill_during_a_backup_leaves_a_whole_one_or_none(tmp_path: Path) -> None:
    delay, whole = random.Random(5), 0
    for number in range(6):
        running = RunningShop(tmp_path / f"data{number}")
        running.wait_for(30)
        backup = running.start_backup(target := tmp_path / f"backup{number}")
        partial = target.with_name(f"{target.name}.partial")
        eventually(lambda: partial.exists() or target.exists(), interval=0.0005)  # noqa: B023
        rest = delay.random() * 0.04
        with pytest.raises(subprocess.TimeoutExpired):
            running.process.wait(rest)
        running.kill()
        backup.communicate(timeout=60)
        if target.exists():
            whole += 1
            verify(target)
            continue
        for folder in (target, partial):
            with pytest.raises(BackupRefused, match="not a whole backup"):
                read_manifest(folder)
            with pytest.raises(BackupRefused):
                restore(folder, tmp_path / "restored")
    assert not (tmp_path / "restored").exists()
    assert whole < 6, "no process was killed in time"


def test_the_commands_verify_and_restore(running: RunningShop, tmp_path: Path) -> None:
    running.wait_for(10)
    target, folder = tmp_path / "backup", tmp_path / "restored"
    assert running.start_backup(target).wait(60) == 0
    running.kill()

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "callboard", *arguments]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)

    good = run("backup", "verify", str(target))
    assert good.returncode == 0
    assert "is whole and intact: shop at" in good.stdout
    assert run("restore", str(target), str(folder)).returncode == 0
    assert (folder / STATE).is_file()
    again = run("restore", str(target), str(folder))
    assert (again.returncode, again.stderr.count("is not empty")) == (2, 1)
    segment = next((target / "data" / LOG).glob("*.log"))
    segment.write_bytes(segment.read_bytes()[:-1])
    bad = run("backup", "verify", str(target))
    assert bad.returncode == 1
    assert str(segment) in bad.stderr
