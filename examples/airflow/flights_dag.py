"""A DAG for Airflow that evaluates the new records of a log every hour.

Put it into Airflow's folder of DAGs. It needs no package besides Airflow: `CALLBOARD` is the
command of an environment with `callboard[spark]`.
"""

import os
from datetime import UTC, datetime, timedelta

from airflow import DAG
from airflow.operators.bash import BashOperator

CALLBOARD = os.environ.get("CALLBOARD", "callboard")
LOG = os.environ.get("CALLBOARD_LOG", "/srv/flights")
RESULTS = os.environ.get("CALLBOARD_RESULTS", "/srv/delays")

with DAG(
    "flights",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    schedule="@hourly",
    catchup=False,
    # Two runs at a time would share one checkpoint.
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=1)},
) as dag:
    BashOperator(
        task_id="delays",
        # exec: Airflow's signal reaches the query itself, which then ends in order.
        bash_command=(
            f"exec {CALLBOARD} pipeline run quantiles --log {LOG} --to {RESULTS} --once"
            " --time scheduled --field delay --window 1h --delay 6h"
        ),
    )
