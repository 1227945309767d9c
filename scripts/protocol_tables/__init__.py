"""Tables of the protocol pages, read from the code: byte layouts, codes, limits, messages.

A page names what it shows and says what it means; offsets, sizes, numbers and limits come from
the modules themselves, by import. A field that the code has and the page lacks is an error.
"""

from scripts.protocol_tables.tables import TABLES, TableError, table

__all__ = ["TABLES", "TableError", "table"]
