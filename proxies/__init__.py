"""Remote actors as local ones: nodes, links between them, proxies, names, remote spawn."""

from proxies.messages import message
from proxies.node import Node

__all__ = ["Node", "message"]
