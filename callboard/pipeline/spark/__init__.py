"""What Spark runs in its own processes: sources, sinks, stateful queries; loads no actors."""
