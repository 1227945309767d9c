"""The command line: `callboard NOUN VERB`.

Importing this package loads typer and no other large module; each command imports what it needs
when it runs.
"""

from callboard.cli.app import main

__all__ = ["main"]
