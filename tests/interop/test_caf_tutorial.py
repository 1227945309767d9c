"""The programs of `docs/caf.md`, as a reader runs them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.peers.caf import HEADER
from benchmarks.peers.compiled import Compiled
from tests.interop.caf.real_node import RealNode, compiled

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[2] / "docs" / "caf.md").read_text()


def test_the_service_is_extended_as_the_page_shows(tmp_path):
    (cpp,) = re.findall(r"^```cpp\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (program,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    source = tmp_path / "shop.cpp"
    source.write_text(cpp.replace("4242", "0"))
    shop = RealNode(
        program=compiled(Compiled(source, HEADER, "libcaf-dev", "c++17", LIBRARIES))
    )
    try:
        port = shop.line().removeprefix("port ")
        script = tmp_path / "discount.py"
        script.write_text(program.replace("4242", port))
        done = subprocess.run(
            [sys.executable, script], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.stdout.split() == re.findall(r"print\(.*\)  # (\S+)", program), done.stderr
    finally:
        shop.end()


LIBRARIES = ("caf_io", "caf_core")
