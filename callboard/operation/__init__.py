"""Operate nodes: configuration, health and metrics, the service manager, logs.

`callboard node run` combines these; a program that creates a `Node` can use each separately.
"""

from callboard.figures import Metric, exposition
from callboard.operation.health import HealthServer
from callboard.operation.logs import JsonFormatter, label_log_records
from callboard.operation.metrics import node_metrics
from callboard.operation.notify import ServiceManager

__all__ = [
    "HealthServer",
    "JsonFormatter",
    "Metric",
    "ServiceManager",
    "exposition",
    "label_log_records",
    "node_metrics",
]
