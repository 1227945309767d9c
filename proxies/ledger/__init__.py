"""Records of a node about other nodes and their actors. Pure."""
