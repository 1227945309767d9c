"""The table of docs/channels.md tells the defaults."""

import inspect
import re
from pathlib import Path

from callboard.channel import Consumer, Producer

PAGE = (Path(__file__).parents[3] / "docs" / "channels.md").read_text()


def test_the_table_tells_the_defaults():
    told = dict(re.findall(r"`((?:Producer|Consumer)\(\w+)=…\)`[^|]*\| ([\d,]+) ", PAGE))
    options = {
        f"{kind.__name__}({name}": f"{parameter.default:,}"
        for kind in (Producer, Consumer)
        for name, parameter in inspect.signature(kind).parameters.items()
        if isinstance(parameter.default, int)
    }

    assert told == options
