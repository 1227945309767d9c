"""The runner of a node: run queue, event loop, poller, timers and watcher."""
