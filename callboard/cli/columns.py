"""Tables of plain text, for people and for `awk`."""

from collections.abc import Collection, Sequence


def columns(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[int] = ()
) -> str:
    """Return rows under a head, each column as wide as it has to be.

    Args:
        head: the titles.
        rows: as many texts each.
        right: indexes of the columns that stand at their right edge, as numbers do.
    """
    lines = [head, *rows]
    widths = [max(len(line[index]) for line in lines) for index in range(len(head))]
    return "\n".join(
        "  ".join(
            text.rjust(width) if index in right else text.ljust(width)
            for index, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def age_text(seconds: float) -> str:
    """Return a time span in the two largest units that it has."""
    for unit, size, next_unit, next_size in (
        ("d", 86_400, "h", 3_600),
        ("h", 3_600, "m", 60),
        ("m", 60, "s", 1),
    ):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}{int(seconds % size // next_size)}{next_unit}"
    return f"{seconds:.1f}s"
