"""Links of a node: streams over sockets, TLS, dialing and accepting."""
