import pytest

from tests.callboard.mqtt.stage import Stage


@pytest.fixture
def stage() -> Stage:
    return Stage()
