"""Run the programs that the docs show, and record them: `python -m scripts.films [NAME…]`.

Recordings differ from run to run; `make drawings` makes the pictures from them.
"""

import sys
from collections.abc import Sequence

from scripts.films.all import FILMS, place
from scripts.films.cast import thinned
from scripts.films.record import record


def main(names: Sequence[str]) -> int:
    """Record the films of these names, or all."""
    for name in names or FILMS:
        film = FILMS[name]
        with film.stage() as folder:
            cast = record(film.command, film.typed, film.columns, film.rows, folder)
        thinned(cast, film.interval, film.longest, film.after).write(place(name))
        print(place(name).name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
