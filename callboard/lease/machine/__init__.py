"""The pure part of leases: answers of a register and the time in, reads and writes out."""
