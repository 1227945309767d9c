"""The core of an endpoint: pure, without sockets, threads or a clock."""
