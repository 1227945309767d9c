"""States of entities: databases with their events, snapshots and fences."""
