"""The CBOR tags of messages, in one table.

====== ======================== ========================================================
tag    content                  Python type
====== ======================== ========================================================
2, 3   byte string              int beyond 64 bits (standard)
37     16 bytes                 uuid.UUID (standard)
258    array                    set (standard)
1004   text                     datetime.date, ISO 8601 (standard)
48900  array                    tuple
48901  array                    frozenset
48902  array                    dict with keys other than text and bytes: key, value, key,
                                value …
48903  [name, content]          registered type; content is a map of fields, the name of an
                                enum member, or the integer of a flag
48904  [bytes, int]             actor reference: node id, actor number
48904  [text, text]             reference of an entity: name of its type, key
48905  byte string              bytearray
48906  text                     decimal.Decimal, exactly as str() writes it
48907  text                     datetime.datetime, ISO 8601; naive without offset
48908  text                     datetime.time, ISO 8601
48909  [int, int, int]          datetime.timedelta: days, seconds, microseconds
48910  [int, text]              IP address, network or interface; the integer is its place in
                                ``IP_TYPES``
48911  [tag 48907 or 48908]     the same with ``fold`` 1
====== ======================== ========================================================

A list is an untagged CBOR array, and a dict with keys of text and bytes an untagged map; a map
with other keys is refused (see :mod:`callboard.cbor.collisions`). Tags 48900-48911 are
unassigned in IANA's first-come range at the time of writing. Every other tag is refused, above
all shared references and string references (25, 28, 29, 256), which would let a small payload
grow into a large or cyclic message.
"""

import ipaddress
from typing import Final

SET: Final = 258
TUPLE: Final = 48900
FROZENSET: Final = 48901
PAIRS: Final = 48902
REGISTERED: Final = 48903
REFERENCE: Final = 48904
BYTEARRAY: Final = 48905
DECIMAL: Final = 48906
DATETIME: Final = 48907
TIME: Final = 48908
TIMEDELTA: Final = 48909
IP: Final = 48910
FOLDED: Final = 48911

IP_TYPES: Final = (
    *(ipaddress.IPv4Address, ipaddress.IPv4Network, ipaddress.IPv4Interface),
    *(ipaddress.IPv6Address, ipaddress.IPv6Network, ipaddress.IPv6Interface),
)

#: All tags that cbor2 decodes without a function of ours; a test checks that none is missing.
CBOR2_TAGS: Final = (
    *(0, 1, 2, 3, 4, 5, 25, 28, 29, 30, 35, 36, 37, 52, 54, 100),
    *(256, 258, 260, 261, 1004, 43000, 55799),
)

#: Tags of these that cbor2 decodes to the right Python type: big integers, UUIDs and dates.
TRUSTED_TAGS: Final = (2, 3, 37, 1004)
