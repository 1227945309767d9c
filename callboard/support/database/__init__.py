"""What databases have in common: open files of SQLite, and threads that work for a node."""
