"""Where entities' events and snapshots are kept, and what proves who may write them."""
