"""A module broker and a gateway, each on its own node."""

from collections.abc import Iterator
from types import ModuleType

import pytest

from callboard import Node
from callboard.gateway import Gateway
from callboard.gateway.broker import ModuleBroker
from tests.callboard.gateway import shelf as modules


@pytest.fixture
def node() -> Iterator[Node]:
    with Node("gateway") as made:
        yield made


@pytest.fixture
def broker(node) -> Iterator[ModuleBroker]:
    with ModuleBroker(node) as made:
        yield made


@pytest.fixture
def gateway(node) -> Iterator[Gateway]:
    """Return one without modules, that was started."""
    with Gateway(node) as made:
        made.start()
        yield made


@pytest.fixture
def shelf() -> ModuleType:
    """Return the modules that configurations name; none was made yet."""
    modules.made.clear()
    return modules
