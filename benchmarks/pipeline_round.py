"""From a publish on a topic through a log and Spark back to a topic, median of 20.

One endpoint publishes and subscribes, another one records, runs the query, which has no
windows, and hands its results on.
"""

import tempfile
import time
from statistics import median

from benchmarks.measure import Measure, Subject
from benchmarks.spark_logs import spark_ready, start
from callboard import Endpoint
from callboard.pipeline.bridge import Bridge

ROUNDS = 20
WARM = 3
PATIENCE = 45.0


def ours(share: float = 1.0) -> float:
    """Return seconds of a round."""
    taken: list[float] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        Endpoint() as user,
        Endpoint() as service,
        user.make_subscriber("/double") as results,
        service.record("/n", f"{folder}/log") as recording,
        Bridge(f"{folder}/out", endpoint=service),
    ):
        assert user.peer("127.0.0.1", service.listen("127.0.0.1", 0))
        assert user.await_peer(service.node_id())
        spark = start()
        try:
            rows = spark.readStream.format("callboard").schema("n BIGINT")
            query = rows.load(f"{folder}/log").selectExpr("'/double' topic", "n * 2 AS n")
            writer = query.writeStream.format("callboard")
            writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
            running = writer.start(f"{folder}/out")
            for number in range(WARM + max(3, int(ROUNDS * share))):
                started = time.perf_counter()
                user.publish("/n/1", {"n": number})
                found = results.get(PATIENCE)
                assert found is not None, running.exception()
                assert found[1] == {"n": 2 * number}
                taken.append(time.perf_counter() - started)
            running.stop()
        finally:
            spark.stop()
        assert recording.lost == 0
    return median(taken[WARM:])


MEASURE = Measure(
    title="from a topic through Spark to a topic",
    unit="s",
    subjects=(Subject("callboard", ours, spark_ready),),
    more_is_better=False,
)
