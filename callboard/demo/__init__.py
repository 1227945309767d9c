"""The demo: four nodes in a line that one can hurt and watch heal.

Importing this package loads nothing heavy; `callboard.demo.run.run` starts it.
"""

from callboard.demo.story import DemoOptions

__all__ = ["DemoOptions"]
