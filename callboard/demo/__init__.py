"""The demo: a line of four nodes; the user can break them and watch the cluster recover.

Importing this package is cheap; `callboard.demo.run.run` starts the demo.
"""

from callboard.demo.story import DemoOptions

__all__ = ["DemoOptions"]
