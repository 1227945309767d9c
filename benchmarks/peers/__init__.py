"""The rivals: installed on demand, run in processes of their own, never in our environment."""
