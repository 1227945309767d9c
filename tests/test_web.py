"""The programs of docs/web.md run under their servers; every key answers, also after a kill."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.polling import eventually

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[1] / "docs" / "web.md"
FILE = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```", re.DOTALL | re.MULTILINE)
KEYS = [f"k{number}" for number in range(40)]


@pytest.fixture
def folder(tmp_path):
    """A folder with the programs of the page."""
    for name, text in FILE.findall(PAGE.read_text(encoding="utf-8")):
        (tmp_path / name).write_text(text)
    return tmp_path


@contextmanager
def served(folder, app, state, *options):
    """Run uvicorn, and yield the URL of its carts."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        os.set_inheritable(listener.fileno(), True)
        with subprocess.Popen(
            [sys.executable, "-m", "uvicorn", app, "--fd", str(listener.fileno()), *options],
            cwd=folder,
            env=os.environ | {"SHOP_STATE": str(state)},
            pass_fds=[listener.fileno()],
        ) as server:
            try:
                yield f"http://127.0.0.1:{listener.getsockname()[1]}/carts"
            finally:
                server.send_signal(signal.SIGTERM)
                try:
                    server.wait(30)
                except subprocess.TimeoutExpired:
                    server.kill()


def answer(url, method="GET", *, may_fail=False):
    """Return the answer to a request; None if its worker, or an owner, may have been killed."""
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, method=method), timeout=20
        ) as got:
            return json.load(got)
    except urllib.error.HTTPError as error:
        if may_fail:
            return None
        raise AssertionError(f"{url}: {error.code} {error.read()!r}") from None
    except OSError:
        return None


def add(carts, key, item):
    return eventually(lambda: answer(f"{carts}/{key}?item={item.replace(' ', '+')}", "POST"))


@pytest.mark.parametrize("app", ["website:app", "api:app", "project:app"])
def test_every_key_answers_at_four_workers_and_after_the_kill_of_one(folder, app):
    pytest.importorskip("uvicorn")
    pytest.importorskip({"api:app": "fastapi", "project:app": "django"}.get(app, "starlette"))
    with served(folder, app, folder / "shop.db", "--workers", "4") as carts:
        workers = set()

        def has_all_workers():
            workers.add(add(carts, "count", "x")["worker"])
            return len(workers) == 4

        eventually(has_all_workers)
        for key in KEYS:
            assert add(carts, key, "tea")["count"] == 1
        os.kill(workers.pop(), signal.SIGKILL)

        for key in KEYS:
            assert eventually(partial(answer, f"{carts}/{key}", may_fail=True)) == ["tea"], key
        assert {add(carts, key, "milk")["count"] for key in KEYS} == {2}


def test_changes_arrive_from_all_workers(folder):
    pytest.importorskip("fastapi")
    with served(folder, "api:app", folder / "shop.db", "--workers", "2") as carts:
        add(carts, "ann", "first")
        with urllib.request.urlopen(f"{carts}/ann/changes", timeout=30) as changes:
            assert changes.readline() == b": listening\n"
            posted = []

            def has_both():
                posted.append(add(carts, "ann", f"tea {len(posted)}")["worker"])
                return len(set(posted)) == 2

            eventually(has_both)
            for number in range(len(posted)):
                line = next(line for line in changes if line.startswith(b"data: "))
                assert line == b"data: tea %d\n" % number


def test_the_tests_of_the_page_pass(folder):
    pytest.importorskip("fastapi")
    pytest.importorskip("httpx")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_api.py"]
    done = subprocess.run(
        command, cwd=folder, timeout=120, text=True, capture_output=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_views_of_django_answer_without_a_loop_and_on_one(folder):
    pytest.importorskip("django")
    program = (
        "import project, django.test as t; t.utils.setup_test_environment(); c = t.Client()\n"
        "print(c.post('/carts/ann?item=tea').json()['count'], c.get('/awaited/ann').json())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env=os.environ | {"SHOP_STATE": str(folder / "shop.db")},
        timeout=120,
        text=True,
        capture_output=True,
        check=False,
    )

    assert done.stdout.split(maxsplit=1) == ["1", "['tea']\n"], done.stderr
