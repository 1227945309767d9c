"""Python processes for Spark, forked from one that has already imported what they need."""
