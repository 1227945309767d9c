"""Numbers of settings with which nobody can reckon: not a number, infinite, too long."""

import math
from dataclasses import fields

import pytest
from pydantic import ValidationError

from callboard.actors.mailbox import Mailbox
from callboard.commitlog import Retention
from callboard.configuration.reading import Table
from callboard.gateway.configuration import QueueEntry
from callboard.mqtt.access.auth import Security
from callboard.mqtt.port.limits import NetworkLimits
from callboard.mqtt.router.limits import Limits as MqttLimits
from callboard.proxies.link.limits import Limits
from callboard.store.options import CloneOptions, StoreOptions
from callboard.support.seconds import LARGEST
from callboard.topics.hub import HubOptions

SETTINGS = [
    Mailbox,
    HubOptions,
    StoreOptions,
    CloneOptions,
    NetworkLimits,
    MqttLimits,
    Security,
    Limits,
    Retention,
]
NUMBERS = [math.nan, math.inf, -math.inf, 10**400, -(10**400)]


@pytest.mark.parametrize("value", NUMBERS, ids=["nan", "inf", "-inf", "huge", "-huge"])
@pytest.mark.parametrize("settings", SETTINGS)
def test_a_setting_is_a_number_or_refused(settings, value):
    names = [each.name for each in fields(settings) if each.type in NUMERIC]
    assert names
    for name in names:
        try:
            made = getattr(settings(**{name: value}), name)
        except ValueError:
            continue
        # Times stand for ever then, or are over; Retention(seconds=inf) has no limit.
        assert made is None or -LARGEST <= made <= LARGEST, name


NUMERIC = (int, float, int | None, float | None)


@pytest.mark.parametrize("value", NUMBERS[:4], ids=["nan", "inf", "-inf", "huge"])
@pytest.mark.parametrize("annotation", NUMERIC)
def test_a_table_takes_no_such_number(annotation, value):
    class Some(Table):
        number: annotation = 1

    with pytest.raises(ValidationError):
        Some.model_validate({"number": value})
    assert Some.model_validate({"number": 7}).number == 7


def test_the_error_says_what_is_taken():
    with pytest.raises(ValidationError, match=f"at most {LARGEST:,}"):
        QueueEntry.model_validate({"limit": 10**30})
    with pytest.raises(ValueError, match=rf"Mailbox\(limit=nan\): .* at most {LARGEST:,}"):
        Mailbox(limit=math.nan)
