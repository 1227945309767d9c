"""A Thespian system for each test."""

import pytest
from thespian.actors import ActorSystem

from callboard.actors import SystemBase


@pytest.fixture
def base():
    return SystemBase(capabilities={"colour": "blue"})


@pytest.fixture
def system(base, no_thread_left):
    system = ActorSystem(systemBase=base, transientUnique=True)
    yield system
    system.shutdown()
