"""Worker processes: nodes in child processes, to use all cores."""
