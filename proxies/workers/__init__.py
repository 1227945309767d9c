"""Worker processes: nodes in child processes, one for each core."""
