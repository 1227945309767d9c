"""The page that kills the owner of a cart, as a reader does it."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[1] / "docs" / "kill-the-owner.md").read_text()
BLOCKS = re.findall(r"^```python\n(# (\w+\.py)\n.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
SAID = re.findall(r"^ *print\(.*\)  # (.*)$", PAGE, re.MULTILINE)
COMMANDS = re.findall(r"^\$ callboard (entity .*)$", PAGE, re.MULTILINE)


def run(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_cart_answers_after_its_owner_was_killed(tmp_path: Path) -> None:
    for text, name in BLOCKS:
        (tmp_path / name).write_text(text)

    printed = run(tmp_path, "shop.py").splitlines()

    said = [re.escape(each).replace("…", r"\d+") for each in SAID]
    lines = [each for each in printed if re.match(r"True|\[|answered", each)]
    assert len(lines) == len(said) == 4
    for line, pattern in zip(lines, said, strict=True):
        assert re.fullmatch(pattern, line)

    told = [run(tmp_path, "-m", "callboard", *shlex.split(each)) for each in COMMANDS]
    assert told[0].split()[-3:] == ["Cart", "100", "tutorial.Added"]
    assert [line.split()[2] for line in told[1].splitlines()] == ["1", "2"]
    assert told[2].splitlines()[-1] == '  items = ["tea"]'
