"""Readers that go on: followers, and those that have a name and a place in the log."""
