"""The system that this program runs on, and the release of the program."""
