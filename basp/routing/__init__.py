"""Paths to other nodes, and the order of messages on changing paths. Pure.

`router` chooses a path to each node, `update` is the payload in which neighbors announce paths,
`diffusion` detects that a node is lost, and `path_order` delivers messages in order after they
took different paths.
"""
