"""Inspection of nodes: request messages, and the records of their answers."""

from callboard.proxies.actor_trace import TraceActor as TraceActor
from callboard.proxies.actor_trace import TracedMessage as TracedMessage
from callboard.proxies.event_history import EventInfo as EventInfo
from callboard.proxies.event_history import LossInfo as LossInfo
from callboard.proxies.inspection import ActorInfo as ActorInfo
from callboard.proxies.inspection import ActorPage as ActorPage
from callboard.proxies.inspection import ClusterInspection as ClusterInspection
from callboard.proxies.inspection import Inspect as Inspect
from callboard.proxies.inspection import InspectActor as InspectActor
from callboard.proxies.inspection import InspectCluster as InspectCluster
from callboard.proxies.inspection import Inspection as Inspection
from callboard.proxies.inspection import NodeAnswer as NodeAnswer
from callboard.proxies.inspection import PartRows as PartRows
from callboard.proxies.inspection import ReadEvents as ReadEvents
from callboard.proxies.inspection import ReadPart as ReadPart
from callboard.proxies.inspection import SetLogLevel as SetLogLevel
from callboard.proxies.messages import Describe as Describe
from callboard.proxies.messages import Drained as Drained
from callboard.proxies.messages import DrainNode as DrainNode
from callboard.proxies.stats import LinkInfo as LinkInfo
