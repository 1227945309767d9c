"""A pipeline on a cluster: the parts on each host, and the data between them."""

from scripts.drawings.picture import Picture


def draw() -> str:
    """Return the picture."""
    picture = Picture(
        "A pipeline on a cluster: log, driver, executors, checkpoint and results."
    )
    picture.group(8, 8, 240, 150, "*host 1: a node")
    picture.box(28, 36, 200, 32, "actors publish on topics")
    picture.arrow((128, 68), (128, 82))
    picture.box(28, 84, 200, 28, "recording: a log", kind="green")
    picture.box(28, 122, 200, 28, "`grpc+tls://…/metrics", kind="blue")
    picture.group(272, 8, 240, 150, "*host 2: Spark’s driver")
    picture.box(292, 36, 200, 32, "plans micro-batches")
    picture.box(
        292,
        84,
        200,
        66,
        "log of results",
        "~one rename for each",
        "~micro-batch: exactly once",
        kind="green",
    )
    for x, name in ((8, "3"), (272, "4")):
        picture.group(x, 220, 240, 112, "")
        picture.text(x + 120, 322, f"*host {name}: executors", "middle")
        picture.box(
            x + 20,
            236,
            200,
            66,
            "read ranges of offsets,",
            "compute, keep states,",
            "stage results",
        )
    picture.arrow((100, 150), (100, 234), kind="blue")
    picture.arrow((190, 150), (310, 234), kind="blue")
    picture.text(92, 204, "~records", "end")
    picture.arrow((190, 236), (330, 152), kind="green")
    picture.arrow((430, 236), (430, 152), kind="green")
    picture.text(438, 204, "~results")
    picture.box(128, 362, 264, 46, "*checkpoint", "~hdfs, s3a or a folder that all have")
    picture.arrow((200, 332), (200, 360), both=True)
    picture.arrow((320, 332), (320, 360), both=True)
    picture.arrow((492, 117), (505, 117), (505, 447), (394, 447))
    picture.box(128, 424, 264, 46, "*bridge", "~each result a message and an entry")
    picture.caption(
        498,
        "Whatever dies is started again; a batch that runs twice is published once.",
        "~With staging=shared all hosts have the folder of the results. A log and its results "
        "can also be on an object store (s3://…).",
    )
    return picture.svg()
