"""MQTT 3.1.1 and 5: every MQTT client is a neighbour on the hub."""

from callboard.mqtt.config import RouterConfig
from callboard.mqtt.router import Router

__all__ = ["Router", "RouterConfig"]
