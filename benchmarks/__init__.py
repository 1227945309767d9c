"""Figures: callboard and its rivals, measured in the same run (`make bench`)."""
