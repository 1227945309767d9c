"""The programs of the pages about actors run as they stand, in order, in one namespace."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize("page", ["supervision", "groups"])
def test_the_programs_of_a_page_run_as_they_stand(page):
    text = (DOCS / f"{page}.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    namespace = {"__name__": page}

    assert blocks
    for number, block in enumerate(blocks, 1):
        code = compile(block, f"{page}.md block {number}", "exec", dont_inherit=True)
        exec(code, namespace)
