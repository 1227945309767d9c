"""The journal of a type: all its events in the order of commits."""
