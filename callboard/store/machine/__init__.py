"""The machines of masters and clones: pure, without sockets, threads or a clock."""
