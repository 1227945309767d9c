"""Asks beyond one question and one answer: repeated ones, kept answers, many at once."""
