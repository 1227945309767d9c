"""Messages between nodes: out, in, onward, and the paths that they take."""
