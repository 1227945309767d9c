"""The common parts of databases: open files of SQLite, and threads that work for a node."""
