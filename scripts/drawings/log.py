"""A log on disk: segments, the batches in one, the parts of a batch."""

from scripts.drawings.picture import Picture


def draw() -> str:
    """Return the picture."""
    picture = Picture("A log: segments in a folder, batches in a segment, records in a batch.")
    picture.text(8, 20, "*A log is a folder")
    for x, name in ((250, "a reader"), (432, "the writer")):
        picture.text(x, 20, f"~{name}", "middle")
        picture.arrow((x, 26), (x, 44), kind="warm" if name == "the writer" else "green")
    for number, (first, last) in enumerate(((0, 41_999), (42_000, 83_999), (84_000, 91_310))):
        is_last = number == 2
        name = f"`…{first:08}.log"
        offsets = f"~{first:,} to {last:,}"
        state = "~appended to" if is_last else "~full, with an index"
        kind = "blue" if is_last else "box"
        picture.box(8 + 172 * number, 46, 160, 64, name, offsets, state, kind=kind)
    picture.line((352, 110), (8, 152), kind="dash")
    picture.line((512, 110), (512, 152), kind="dash")
    picture.text(8, 176, "*A segment is a row of batches")
    left = 8.0
    for width in (120, 150, 100):
        picture.box(left, 186, width, 46, "*batch", "~durable", kind="green")
        left += width + 8
    picture.box(left, 186, 512 - left, 46, "*batch", "~not yet synced", kind="warm")
    picture.line((136, 232), (8, 264), kind="dash")
    picture.line((286, 232), (512, 264), kind="dash")
    picture.text(8, 288, "*A batch is written, checked and recovered as one")
    left = 8.0
    for width, first_line, second_line in (
        (78, "header", "48 bytes"),
        (66, "note", "receipts"),
        (66, "names", "texts"),
        (108, "columns", "time, topic, …"),
        (72, "lengths", "4 each"),
        (94, "payloads", "bytes, CBOR"),
    ):
        picture.box(left, 298, width, 46, f"*{first_line}", f"~{second_line}")
        left += width + 4
    picture.caption(
        370,
        "The header has a checksum of itself and one of the rest, the offset of the first "
        "record, times, and the number of records, 8,192 at most.",
        "~After a crash the torn tail is cut off. What was durable and is damaged is told.",
    )
    return picture.svg()
