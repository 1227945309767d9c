"""MQTT 3.1.1 and 5: every MQTT client is a neighbour on the hub.

from callboard.mqtt import Router

with Router() as router, router.link("recorder") as link:
    link.subscribe("sensors/#", qos=1).result(5)
"""

from callboard.mqtt.access.acl import AclEntry
from callboard.mqtt.access.admission import Admission, Credentials
from callboard.mqtt.access.auth import Security
from callboard.mqtt.access.scrypt import hash_password
from callboard.mqtt.port.hooks import Hooks
from callboard.mqtt.port.limits import NetworkLimits
from callboard.mqtt.port.listener import ListenerSettings
from callboard.mqtt.port.local_link import LocalLink
from callboard.mqtt.router.limits import DuplicateClientId, Limits
from callboard.mqtt.service.bridge import BridgeSettings
from callboard.mqtt.service.bridge_relay import BridgeTopics
from callboard.mqtt.service.claims import SessionPolicy
from callboard.mqtt.service.config import RouterConfig
from callboard.mqtt.service.destination import Destination
from callboard.mqtt.service.router import Router
from callboard.mqtt.service.rules import Rule
from callboard.mqtt.service.topic_bridge import MqttDoor, TopicMap
from callboard.mqtt.wire.client import Message
from callboard.mqtt.wire.errors import MqttError

__all__ = [
    "AclEntry",
    "Admission",
    "BridgeSettings",
    "BridgeTopics",
    "Credentials",
    "Destination",
    "DuplicateClientId",
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
    "hash_password",
]
