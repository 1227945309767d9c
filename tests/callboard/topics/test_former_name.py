"""The former name of the package keeps working for one release."""

import subprocess
import sys


def test_the_former_name_imports_the_same_modules_and_warns():
    program = """
import warnings

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from callboard.endpoint.hub import Hub as FormerHub
    import callboard.endpoint.machine.effect

from callboard.topics.hub import Hub
from callboard.topics.machine.effect import DoorReceiver

assert FormerHub is Hub
assert callboard.endpoint.machine.effect.DoorReceiver is DoorReceiver
assert [str(warning.message) for warning in caught] == [
    "callboard.endpoint is deprecated, import callboard.topics instead"
]
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
