"""Inspection of nodes: request messages, and the records of their answers."""

from callboard.proxies.actor_trace import TraceActor, TracedMessage
from callboard.proxies.event_history import EventInfo, EventPage, LossInfo
from callboard.proxies.inspection import (
    ActorInfo,
    ActorPage,
    ClusterInspection,
    Inspect,
    InspectActor,
    InspectCluster,
    Inspection,
    NodeAnswer,
    PartRows,
    ReadEvents,
    ReadPart,
)
from callboard.proxies.messages import Describe, Drained, DrainNode
from callboard.proxies.stats import LinkInfo

__all__ = [
    "ActorInfo",
    "ActorPage",
    "ClusterInspection",
    "Describe",
    "DrainNode",
    "Drained",
    "EventInfo",
    "EventPage",
    "Inspect",
    "InspectActor",
    "InspectCluster",
    "Inspection",
    "LinkInfo",
    "LossInfo",
    "NodeAnswer",
    "PartRows",
    "ReadEvents",
    "ReadPart",
    "TraceActor",
    "TracedMessage",
]
