"""The router's journal: records, snapshots, recovery."""
