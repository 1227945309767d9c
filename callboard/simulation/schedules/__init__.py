"""Search over schedules: the possible orders of messages, turns and timers in a test.

A test runs repeatedly in a `SteppedCluster`. Whenever several events are possible, a plan
chooses the next one. The first is the choice of an ordinary simulation, any other is a
deviation. `explore` tries all plans with few deviations, then random ones.
"""
