"""Implementations of the larger commands; each is imported when it runs, not for `--help`."""
