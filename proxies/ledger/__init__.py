"""What a node keeps in mind of other nodes and their actors. Pure."""
