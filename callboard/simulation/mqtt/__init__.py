"""MQTT on simulated machines: ports for routers, and clients with recorded messages."""
