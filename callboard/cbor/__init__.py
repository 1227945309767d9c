"""CBOR for untrusted bytes: exact Python types, and tags that each package can extend.

`reader` parses untrusted bytes with the tags of one table, `writer` encodes by the exact
class of each value, `tags` lists the numbers, `plain` is CBOR without tags, `collisions`
limits keys with equal hashes, and `pieces` reads large items with pauses. Import from these
modules.
"""
