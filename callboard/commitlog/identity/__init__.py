"""The identity of a log, and positions that know their log."""
