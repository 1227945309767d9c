"""Faults with real processes: run by `make faults`."""

import os

#: The number of repetitions, or the factor for durations.
ROUNDS = int(os.environ.get("CALLBOARD_ROUNDS", "1"))

#: The number of kills in tests that kill a process in the middle of its work.
KILLS = int(os.environ.get("CALLBOARD_KILLS", "5"))
