"""Faults with real processes: run by `make faults`."""

import os

#: How often each is done, or how many times as long.
ROUNDS = int(os.environ.get("CALLBOARD_ROUNDS", "1"))

#: How often what is killed in the middle of its work is killed.
KILLS = int(os.environ.get("CALLBOARD_KILLS", "5"))
