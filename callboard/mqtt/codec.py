"""The codec of MQTT 3.1.1 and 5: `decode` and `encode`, one packet at a time.

For rare packets, clients and tests. The router takes runs of PUBLISH and acknowledgements from
a chunk without making packets of them.
"""

from callboard.mqtt.decoder import decode
from callboard.mqtt.encoder import encode

__all__ = ["decode", "encode"]
