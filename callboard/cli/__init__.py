"""The command line: `callboard NOUN VERB`.

Importing this package loads typer and nothing else of weight; each command loads what it
needs when it runs.
"""

from callboard.cli.app import main

__all__ = ["main"]
