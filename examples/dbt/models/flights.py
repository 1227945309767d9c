"""The flights of a log, as a table."""

import os
from datetime import datetime
from typing import Any


def model(dbt: Any, _session: Any) -> Any:
    """Return topic, kind, scheduled time and delay of each record."""
    import pyarrow as pa

    from callboard.commitlog import LogReader

    dbt.config(materialized="table")
    rows = [
        {
            "topic": record.topic,
            "kind": record.payload["kind"],
            "scheduled": datetime.fromisoformat(record.payload["scheduled"]),
            "delay": record.payload["delay"],
        }
        for record in LogReader(os.environ["CALLBOARD_LOG"])
    ]
    return pa.Table.from_pylist(rows)
