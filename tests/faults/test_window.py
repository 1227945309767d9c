"""The demo's own cluster is hurt from its page, and its books still close."""

import re
import subprocess

import pytest

from tests.callboard.dashboard.browser import a_browser
from tests.callboard.demo.test_demo import LAST_LINE, Demo, number

pytest.importorskip("starlette", reason="needs pip install 'callboard[dashboard]'")
pytest.importorskip("uvicorn", reason="needs pip install 'callboard[dashboard]'")


@pytest.mark.alone
@pytest.mark.timeout(300)
def test_kill_freeze_and_cut_are_clicked_and_the_balance_stays_exact(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['pyspark'] = None\n")
    demo = Demo("--forever", beside=[tmp_path], stdout=subprocess.PIPE, text=True)
    told = []

    def reads(text):
        """Read what the demo prints until a line has the text."""
        for line in demo.process.stdout:
            told.append(line)
            if text in line:
                return line
        pytest.fail(f"no {text!r} in {told}")

    try:
        link = reads("open ").split()[1]
        reads("first reading handled")
        with a_browser() as browser:
            browser.open(link).shows("✓ exact", "A → B", "D → C")
            press(browser, "A ─ B", "cut")
            reads("is cut")
            press(browser, "D", "freeze")
            reads("is frozen")
            browser.until(lambda: "D is silent" in browser.text or "D is lost" in browser.text)
            press(browser, "D", "go on")
            reads("D goes on")
            press(browser, "C", "kill")
            browser.shows("C is lost", "lost")
            reads("C is killed (SIGKILL)")
            reads("C is started again")
            browser.until(
                lambda: "exact" in browser.text and "the sums differ" not in browser.text
            )
            assert not browser.errors()
        demo.process.terminate()
        told += demo.process.stdout
        assert demo.process.wait(60) == 0, told
        sent, delivered, lost = map(number, LAST_LINE.fullmatch(told[-1].strip()).groups()[:3])
        assert sent == delivered + lost
        assert not re.search("Traceback", "".join(told))
    finally:
        demo.close()


def press(browser, row, label):
    """Click a button of a row of the first page."""
    find = """return [...document.querySelectorAll('ul.plain li')]
        .filter((each) => (each.querySelector('b') || each).innerText === arguments[0])
        .flatMap((each) => [...each.querySelectorAll('button')])
        .find((each) => each.innerText === arguments[1])"""
    found = browser.until(lambda: browser.script(find, row, label))
    browser.script("arguments[0].click()", found)
