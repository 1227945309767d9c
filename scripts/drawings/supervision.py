"""Supervision: one child fails, and which ones are started again."""

from typing import Final

from scripts.drawings.picture import Picture

AGAIN: Final = {"one_for_one": (2,), "one_for_all": (1, 2, 3), "rest_for_one": (2, 3)}


def draw() -> str:
    """Return the picture."""
    picture = Picture("Supervision: child 2 fails; each strategy starts other children again.")
    y = 8.0
    for strategy, again in AGAIN.items():
        picture.box(8, y + 38, 130, 46, "*supervisor", f"`{strategy}", kind="blue")
        for number in (1, 2, 3):
            x = 190 + 112 * (number - 1)
            kind = "warm" if number == 2 else "green" if number in again else "box"
            word = "failed" if number == 2 else "ended" if number in again else "goes on"
            picture.box(x, y + 4, 98, 46, f"*child {number}", f"~{word}", kind=kind)
            picture.line((138, y + 61), (160, y + 61), (160, y + 61))
            if number in again:
                picture.arrow((x + 49, y + 50), (x + 49, y + 70), kind="green")
                picture.box(x, y + 72, 98, 46, f"*child {number}", "~new actor", kind="green")
        picture.line((160, y + 61), (160, y + 27), (190, y + 27))
        y += 142
    picture.caption(
        y + 8,
        "A group is ended last child first, then started in order. A new actor has the "
        "arguments of the former one and a new ref; its name leads to it.",
        "~More restarts than the intensity allows, for instance 3 in 5 s: the supervisor ends "
        "its children and itself, and the supervisor above it decides.",
    )
    return picture.svg()
