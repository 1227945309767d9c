"""Thespian's own suite, run on callboard's base: `make thespian`."""
