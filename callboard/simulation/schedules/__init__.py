"""Search over schedules: the orders in which messages, turns and timers of a test may come.

A test is lived again and again in a `SteppedCluster`. Whenever more than one thing may happen
next, a plan chooses: the first one is what the simulation would do by itself, any other is a
deviation. `explore` tries all plans with few deviations, then random ones.
"""
