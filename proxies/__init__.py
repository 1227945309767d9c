"""Remote actors as local ones: nodes, links between them, proxies, names, remote spawn."""

from proxies import convention  # opens Thespian systems to others
from proxies.messages import message
from proxies.node import Node

__all__ = ["Node", "convention", "message"]
