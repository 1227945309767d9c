"""The flights of the demo: a day of data, their evaluation in plain Python, and a page."""
