"""The charts, and the figures that each one shows."""

import json
from pathlib import Path
from typing import Any, Final

from scripts.drawings.charts import bars, curves
from scripts.drawings.place import DOCS

BENCHMARKS: Final = DOCS / "benchmarks"

#: The measures of each chart; what `make bench` takes stands in one of them.
GROUPS: Final = {
    "actors": ("local_ask", "local_tell", "spawn", "memory", "blocked", "restart", "workers"),
    "nodes": (
        "remote_ask",
        "remote_pipeline",
        "remote_flood",
        "chain_flood",
        "down_after_kill",
    ),
    "topics": (
        "topic_flood",
        "topic_batches",
        "topic_chain",
        "topic_rounds",
        "topic_record",
        "flow",
        "gateway",
    ),
    "zeek": (
        "zeek_peering",
        "zeek_broker_1_4",
        "zeek_transcode",
        "zeek_logger",
        "zeek_reconnect",
        "zeek_websocket",
        "zeek_zeromq",
    ),
    "stores": (
        "store_put",
        "store_get",
        "store_to_clone",
        "store_to_master",
        "store_round",
        "store_sqlite",
        "store_snapshot",
    ),
    "entities": (
        "entity_commits",
        "entity_events",
        "entity_reads",
        "entity_first",
        "entity_replay",
        "entity_memory",
        "entity_recovery",
        "entity_moves",
    ),
    "logs": (
        "log_append",
        "log_receipts",
        "log_read",
        "log_read_node",
        "log_table",
        "log_on_store",
        "log_served",
    ),
    "mqtt": ("mqtt_qos0", "mqtt_qos1", "mqtt_qos2", "mqtt_pairs", "mqtt_connect", "mqtt_idle"),
    "spark": (
        "pipeline_batch",
        "pipeline_served",
        "pipeline_stream",
        "pipeline_copy",
        "pipeline_micro_batch",
        "pipeline_cluster",
        "pipeline_round",
    ),
    "tools": (
        "history_check",
        "dashboard_paint",
        "dashboard_cpu",
        "dashboard_frames",
        "dashboard_lost",
    ),
}
#: The chart of the front page: where callboard is faster, and where it is slower.
FRONT: Final = ("remote_flood", "remote_ask", "topic_rounds", "local_ask")


def charts() -> dict[Path, str]:
    """Return what each file of a chart has to hold; a chart without figures is left out."""
    results, growth = (read(name) for name in ("results", "growth"))
    groups = {**GROUPS, "front": FRONT}
    drawn = {
        BENCHMARKS / f"peers-{group}.svg": bars.draw(
            results, names, f"callboard beside the peers: {group}"
        )
        for group, names in groups.items()
        if any(name in results["measures"] for name in names)
    }
    for name, scale in growth["scales"].items():
        if scale["points"]:
            drawn[BENCHMARKS / f"growth-{name}.svg"] = curves.draw(growth, name)
    return drawn


def read(name: str) -> dict[str, Any]:
    """Return what the last published run of all measures, or scales, wrote."""
    report: dict[str, Any] = json.loads((BENCHMARKS / f"{name}.json").read_text())
    return report
