"""Which way messages take, and in which order they arrive. Pure.

`router` chooses a path to each node, `update` is what neighbors tell each other about paths,
`diffusion` finds out when a node is lost for sure, and `path_order` keeps the order of messages
whatever ways they take.
"""
