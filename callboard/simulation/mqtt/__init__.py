"""MQTT on simulated machines: ports of routers, and clients whose messages are recorded."""
