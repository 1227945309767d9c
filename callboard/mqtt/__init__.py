"""MQTT 3.1.1 and 5: every MQTT client is a neighbour on the hub.

from callboard.mqtt import Router

with Router() as router, router.link("recorder") as link:
    link.subscribe("sensors/#", qos=1).result(5)
"""

from callboard.mqtt.acl import AclEntry
from callboard.mqtt.auth import Security
from callboard.mqtt.bridge_settings import BridgeSettings, BridgeTopics
from callboard.mqtt.claims import SessionPolicy
from callboard.mqtt.config import RouterConfig
from callboard.mqtt.door import NetworkLimits
from callboard.mqtt.errors import MqttError
from callboard.mqtt.hooks import Hooks
from callboard.mqtt.hub_door import MqttDoor, TopicMap
from callboard.mqtt.limits import Limits
from callboard.mqtt.listener import ListenerSettings
from callboard.mqtt.local_link import LocalLink, Message
from callboard.mqtt.router import Router
from callboard.mqtt.rules import Rule

__all__ = [
    "AclEntry",
    "BridgeSettings",
    "BridgeTopics",
    "Hooks",
    "Limits",
    "ListenerSettings",
    "LocalLink",
    "Message",
    "MqttDoor",
    "MqttError",
    "NetworkLimits",
    "Router",
    "RouterConfig",
    "Rule",
    "Security",
    "SessionPolicy",
    "TopicMap",
]
