"""Floors of figures, and the check against the last recorded ratios.

The floor of a peer is the ratio of our figure to its figure that we must reach. The floor of
one of our own subjects is the figure itself, or a ceiling if less is better: a promise in
seconds, or a ratio.
"""

import json
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.results import Result, Taken, spoken

KEPT: Final = 0.9
"""The share of the last recorded ratio that must be reached again."""

FLOORS: Final[dict[str, dict[str, float]]] = {
    "local_ask": {"CAF, request": 0.4, "xoscar, message": 10},
    "local_tell": {"callboard": 1_000_000, "pykka": 1.5},
    "spawn": {"CAF": 0.07, "xoscar": 4},
    "memory": {"callboard": 1536},
    "remote_flood": {"CAF": 1.0},
    "remote_ask": {"CAF, actor": 2.5, "CAF, thread": 2.0, "CAF tuned, actor": 1.0},
    "remote_pipeline": {"CAF": 0.6},
    "streams": {"asks, lists of 100": 0.8},
    "caf_ask": {"CAF as client": 1.0},
    "caf_flood": {"CAF as client": 0.5},
    "chain_flood": {"callboard, two nodes": 0.6},
    "down_after_kill": {"callboard, three hops": 1000},
    "restart": {"callboard": 1.0},
    "workers": {"callboard": 1.6},
    "blocked": {"callboard, time.sleep": 10, "callboard, computing": 15},
    "flow": {
        "callboard, credit 1": 5_000,
        "callboard, credit 10": 20_000,
        "callboard, credit 100": 40_000,
    },
    "log_append": {"callboard, runs of 100": 400_000},
    "work_queue": {"callboard, SQLite": 5_000, "Celery, Redis": 3},
    "log_receipts": {"plain asks": 0.5},
    "log_read": {"callboard": 1_000_000},
    "log_table": {"pyarrow, Parquet of the same": 0.3},
    "log_on_store": {"pyarrow, Parquet dataset of the same": 0.5},
    "log_served": {"callboard, a folder": 0.8},
    "pipeline_served": {"callboard, a folder": 0.8},
    "pipeline_batch": {"Spark, Parquet": 0.2},
    "pipeline_stream": {"callboard": 200_000},
    "pipeline_copy": {"callboard": 80_000},
    "pipeline_micro_batch": {"callboard, no states": 0.3, "callboard, windows": 0.7},
    "pipeline_cluster": {"local master": 0.67},
    "pipeline_round": {"callboard": 1.5},
    "topic_flood": {"Zeek Broker, Python": 3, "Zeek Broker, C++": 0.4},
    "topic_batches": {"Zeek Broker, Python": 1},
    "topic_chain": {"Zeek Broker, Python": 4},
    "zeek_broker_1_4": {"Zeek Broker, Python, both ends": 0.3},
    "zeek_peering": {"our own wire, in": 0.4, "our own wire, out": 0.4},
    "zeek_transcode": {"by objects": 3},
    "zeek_logger": {"callboard, batches of 400": 8_000},
    "zeek_reconnect": {"callboard, three Zeeks": 1000},
    "zeek_zeromq": {"callboard, by the clock": 20_000},
    "zeek_websocket": {"zeekpy, in": 0.5, "zeekpy, out": 0.5},
    "topic_rounds": {"Zeek Broker, Python": 50},
    "store_put": {"Zeek Broker, Python": 2},
    "store_get": {"Zeek Broker, Python, master": 2, "Zeek Broker, Python, clone": 2},
    "store_to_clone": {"Zeek Broker, Python": 2},
    "store_to_master": {"Zeek Broker, Python": 2},
    "store_round": {"Zeek Broker, Python": 20},
    "store_sqlite": {"Zeek Broker, Python": 5},
    "store_snapshot": {"Zeek Broker, Python": 0.5},
    **{
        f"mqtt_qos{qos}": {
            **{f"mosquitto, {flow}": over for flow in ("1 to 1", "1 to 10", "10 to 1")},
            **{f"amqtt, {flow}": 5 for flow in ("1 to 1", "1 to 10", "10 to 1")},
        }
        for qos, over in ((0, 2), (1, 2), (2, 1))
    },
    "mqtt_pairs": {"mosquitto, 50 pairs": 0.6, "amqtt, 50 pairs": 5},
    "mqtt_bridge": {"mosquitto": 0.8},
    "mqtt_connect": {"mosquitto": 0.4, "amqtt": 5},
    "mqtt_idle": {"callboard": 12, "amqtt": 5},
    "entity_events": {"callboard, PostgreSQL": 10_000, "eventsourcing, SQLite": 4},
    "entity_reads": {"casty, client": 1},
    "entity_first": {"on this node": 2, "on another node": 4},
    "entity_replay": {"callboard, SQLite": 125_000, "eventsourcing, SQLite": 5},
    "entity_memory": {
        "a key": 16,
        "an entity that is awake": 3_072,
        "one that was put away": 512,
    },
    "entity_recovery": {"same machine, SQLite": 2, "leases only, PostgreSQL": 4},
    "entity_moves": {"moved by hand, p99": 50, "drained, p99": 50},
    "history_check": {"10,000 on 100 keys": 5, "300 on a key, 20 unknown": 10},
    "dashboard_paint": {"callboard": 1_000},
    "dashboard_cpu": {"callboard, page open": 3},
    "dashboard_frames": {"callboard": 30},
    "dashboard_lost": {"callboard": 2_000},
}


def recorded(file: Path) -> dict[str, dict[str, float]]:
    """Return the ratios of an earlier run, by measure and peer; empty without one."""
    if not file.exists():
        return {}
    measures: dict[str, Any] = json.loads(file.read_text())["measures"]
    return {
        name: {peer["name"]: peer["ratio"] for peer in measure["subjects"] if peer["ratio"]}
        for name, measure in measures.items()
    }


def complaints(result: Result, earlier: dict[str, dict[str, float]]) -> list[str]:
    """Return a line for each floor that a result misses, and each ratio that it lost."""
    texts = (_complaint(result, taken, earlier) for taken in result.taken)
    return [text for text in texts if text]


def _complaint(result: Result, taken: Taken, earlier: dict[str, dict[str, float]]) -> str:
    name = taken.subject.name
    floor = FLOORS.get(result.name, {}).get(name)
    ratio = result.ratio(taken)
    label = f"{result.measure.title}: {name}"
    if ratio is None:
        if floor is None or taken.subject.against or not taken.figures:
            return ""
        figure = median(taken.figures)
        missed = figure < floor if result.measure.more_is_better else figure > floor
        return (
            f"{label}: {spoken(figure)} {result.measure.unit}, promised {spoken(floor)}"
            * missed
        )
    if floor is not None and ratio < floor:
        return f"{label}: {ratio:.2f}x, promised {floor:g}x"
    last = earlier.get(result.name, {}).get(name)
    if last is not None and ratio < last * KEPT:
        return f"{label}: {ratio:.2f}x, recorded last {last:.2f}x"
    return ""
