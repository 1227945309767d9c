"""Options, as a program sets them."""

import logging

import pytest

from callboard.broker import BrokerOptions, Configuration, Endpoint
from callboard.broker.options import InvalidOption, set_up_logging


@pytest.fixture
def callboard_log():
    """The logger, as it was before."""
    log = logging.getLogger("callboard")
    handlers, level = list(log.handlers), log.level
    yield log
    for handler in set(log.handlers) - set(handlers):
        log.removeHandler(handler)
        handler.close()
    log.setLevel(level)


def verbose(console="", file=""):
    options = BrokerOptions()
    options.console_verbosity, options.file_verbosity = console, file
    return options


def test_defaults_are_those_of_broker():
    options = BrokerOptions()

    assert (options.ttl, options.forward, options.disable_ssl) == (20, True, False)
    assert not options.disable_forwarding


@pytest.mark.parametrize(
    ("name", "value"), [("ttl", "5"), ("ttl", 5.5), ("forward", 1), ("peer_buffer_size", None)]
)
def test_a_value_of_another_type_is_refused(name, value):
    with pytest.raises(InvalidOption, match=name):
        setattr(BrokerOptions(), name, value)


@pytest.mark.parametrize("of", [BrokerOptions(), Configuration()])
def test_a_name_that_is_no_option_is_refused(of):
    with pytest.raises(AttributeError, match="no option 'bogus'"):
        of.bogus = 1


@pytest.mark.parametrize("ttl", [0, -1, 65_536])
def test_a_ttl_outside_of_its_range_is_refused(ttl):
    with pytest.raises(InvalidOption, match="ttl"):
        BrokerOptions().ttl = ttl


def test_an_overflow_policy_that_is_none_is_refused():
    with pytest.raises(InvalidOption, match="drop_newest"):
        BrokerOptions().peer_overflow_policy = "forget"


def test_options_reach_the_core():
    options = BrokerOptions()
    options.ttl, options.forward = 3, False
    options.peer_buffer_size, options.peer_overflow_policy = 7, "drop_oldest"

    with Endpoint(Configuration(options)) as endpoint:
        used = endpoint.hub.options
        assert (used.ttl, used.forwards) == (3, False)
        assert (used.peer_buffer_size, used.overflow_policy) == (7, "drop_oldest")
        assert endpoint.hub.core.ttl == 3


def test_the_environment_names_the_endpoint(monkeypatch):
    monkeypatch.setenv("BROKER_METRICS_ENDPOINT_NAME", "worker-1")
    ignoring = BrokerOptions()
    ignoring.ignore_broker_conf = True

    with Endpoint() as named, Endpoint(Configuration(ignoring)) as unnamed:
        assert named.name == "worker-1"
        assert unnamed.name == unnamed.node.name


def test_the_console_shows_what_the_environment_wants(callboard_log):
    set_up_logging(verbose(console="info"))
    set_up_logging(verbose(console="info"))

    added = [one for one in callboard_log.handlers if one.name == "broker console_verbosity"]
    assert [handler.level for handler in added] == [logging.INFO]
    assert callboard_log.isEnabledFor(logging.INFO)


def test_the_file_gets_what_the_environment_wants(callboard_log, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    set_up_logging(verbose(console="quiet", file="WARNING"))

    callboard_log.warning("seen")
    callboard_log.info("not seen")

    assert "seen" in (tmp_path / "broker.log").read_text()
    assert "not seen" not in (tmp_path / "broker.log").read_text()


def test_a_verbosity_that_is_none_is_refused():
    with pytest.raises(InvalidOption, match="use one of quiet"):
        set_up_logging(verbose(console="loud"))
