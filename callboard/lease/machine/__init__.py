"""The pure state machine of leases: register replies and times in, reads and writes out."""
