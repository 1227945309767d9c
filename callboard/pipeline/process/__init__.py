"""Python processes for Spark that are forks of one that has imported all already."""
