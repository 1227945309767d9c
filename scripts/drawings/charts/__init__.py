"""Charts of the figures in `docs/benchmarks`: us beside the peers, and how cost grows."""
