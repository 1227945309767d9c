"""Moving pictures of terminals for the docs, from recordings of real runs.

`make films` runs the programs and records them as `docs/films/*.cast`, asciinema's format;
`make drawings` makes the pictures from the recordings, so that they come out equal each time.
"""
