"""Shared parts of tests that run many seeds or schedules."""
