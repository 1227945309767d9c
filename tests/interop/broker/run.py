"""Runs a program with the real package; for the interpreter that has it.

Broker 1.4 was written for Python 3.9: it looks for a name that `collections` had then.
"""

import collections
import collections.abc
import runpy
import sys

collections.Iterable = collections.abc.Iterable
runpy.run_path(sys.argv[1], run_name="__main__")
