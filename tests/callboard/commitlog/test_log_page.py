"""What docs/log.md lists is complete; its programs run with all pages (test_pages)."""

import re
from pathlib import Path
from typing import get_args

from callboard.commitlog.log import Sync

PAGE = (Path(__file__).parents[3] / "docs" / "log.md").read_text()


def test_the_page_tells_every_mode_of_durability():
    assert re.findall(r'^\| `"(\w+)"`', PAGE, re.MULTILINE) == list(get_args(Sync))
