"""The program of docs/channels.md runs as it stands, and its table tells the defaults."""

import inspect
import re
from pathlib import Path

from callboard.channel import Consumer, Producer

PAGE = (Path(__file__).parents[3] / "docs" / "channels.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_program_of_the_page_runs_as_it_stands(capsys):
    (program,) = BLOCKS
    exec(compile(program, "channels.md", "exec", dont_inherit=True), {})

    assert capsys.readouterr().out == "connected c1\n"


def test_the_table_tells_the_defaults():
    told = dict(re.findall(r"`((?:Producer|Consumer)\(\w+)=…\)`[^|]*\| ([\d,]+) ", PAGE))
    options = {
        f"{kind.__name__}({name}": f"{parameter.default:,}"
        for kind in (Producer, Consumer)
        for name, parameter in inspect.signature(kind).parameters.items()
        if isinstance(parameter.default, int)
    }

    assert told == options
