"""The measured work with detangle; run by the Python of the peers' environment.

    detangle_program.py check FILE    the verdict on a history, events as JSON

It prints the seconds.
"""

import json
import sys
import time
from pathlib import Path

import detangle


def check(path: str) -> float:
    """Judge a history; returns the seconds that it took."""
    history = detangle.History()
    begun = {}
    for number, client, key, name, value, outcome, answer in json.loads(Path(path).read_text()):
        if outcome == "begin":
            argument = key if name == "read" else (key, value)
            begun[number] = history.invoke(client, name, argument)
        elif outcome == "answered":
            history.ok(begun[number], answer)
        else:
            history.info(begun[number])
    started = time.perf_counter()
    history.assert_linearizable(detangle.lin.KV())
    return time.perf_counter() - started


def main(what: str, argument: str) -> None:
    """Measure and print."""
    assert what == "check", what
    print("rate", check(argument), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
