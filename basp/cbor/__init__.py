"""CBOR for bytes of peers: exact Python values, and tags that each room adds to.

`reader` parses untrusted bytes and knows the tags of one table, `writer` encodes by the exact
class of each value, `tags` lists the numbers, `plain` is CBOR without tags, and `collisions`
bounds what colliding keys can cost. Import from these modules.
"""
