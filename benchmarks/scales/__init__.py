"""How cost grows: one file for each thing that there may be much of."""
