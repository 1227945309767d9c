"""Files: their place, files of one user, and bounded reading of files that users name."""
