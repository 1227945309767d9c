"""The peers: installed on demand, and run in separate processes, never in our environment."""
