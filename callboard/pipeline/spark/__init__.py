"""Code for Spark's own processes: sources, sinks, stateful queries. It loads no actors."""
