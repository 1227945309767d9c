"""What `callboard` exports is complete: every error and every event of the rooms below."""

import inspect

import pytest

import actors.errors
import actors.events
import callboard
import proxies.errors
import proxies.events
from callboard import errors, events


def classes_of(module):
    return {
        name
        for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module.__name__
    }


@pytest.mark.parametrize("module", [actors.errors, proxies.errors])
def test_every_error_is_one_that_users_can_catch(module):
    for name in classes_of(module):
        assert issubclass(getattr(errors, name), callboard.CallboardError)
        assert name in errors.__all__


@pytest.mark.parametrize("module", [actors.events, proxies.events])
def test_every_event_can_be_imported(module):
    assert classes_of(module) <= set(events.__all__)


@pytest.mark.parametrize("module", [callboard, errors, events])
def test_what_is_listed_is_there(module):
    assert all(hasattr(module, name) for name in module.__all__)
    assert len(set(module.__all__)) == len(module.__all__)
