"""Answers that stream: both ends of a stream, as machines, and their drivers."""
