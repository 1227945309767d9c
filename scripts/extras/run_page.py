"""Run a program, and the programs of a page that use given names; needs callboard alone.

    run_page.py PROGRAM.py [PAGE.md NAME…]

The blocks of a page run in order, in one namespace. A block that needs another extra is left
out, unless it contains one of the names.
"""

import contextlib
import io
import re
import runpy
import sys
from pathlib import Path
from types import ModuleType

BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def main(program: str, page: str = "", *names: str) -> None:
    """Run everything, and say how much it was."""
    runpy.run_path(program)
    ran, used, left_out = 0, 0, 0
    blocks = BLOCK.findall(Path(page).read_text(encoding="utf-8")) if page else []
    module = ModuleType("page")
    sys.modules["page"] = module  # where classes are looked up
    for block in blocks:
        is_subject = any(name in block for name in names)
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(block, page, "exec"), vars(module))
        except Exception as error:
            is_missing = isinstance(error, ImportError) or "'callboard[" in str(error)
            if is_subject or not is_missing:
                raise
            print(f"left out: {error}")
            left_out += 1
        else:
            ran, used = ran + 1, used + is_subject
    assert used or not names, f"no block of {page} uses {names}"
    print(f"{ran} programs of {Path(page).name or 'no page'} ran, {left_out} were left out")


main(*sys.argv[1:])
