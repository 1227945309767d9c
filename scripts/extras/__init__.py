"""Each extra alone in an empty environment: see `python -m scripts.extras --help`."""
