"""Extensions of `ask`: repeats, cached replies, and waiting for many futures."""
