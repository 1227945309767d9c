"""Pure machines: ownership of slots, votes, and the jobs of a queue."""
