"""What holds: options of the program, broker.conf, the environment."""

import pytest

from callboard.broker import BrokerOptions, Configuration, Endpoint
from callboard.broker.options import FILE_LIMIT, FILE_NAME, effective_options
from callboard.model.errors import InvalidOption


@pytest.fixture
def effective(tmp_path):
    """Return what holds for a text of the file and variables."""

    def make(text="", options=None, **environment):
        (tmp_path / FILE_NAME).write_text(text, encoding="utf-8")
        return effective_options(options or BrokerOptions(), environment, tmp_path)

    return make


def test_without_file_and_environment_the_program_decides(tmp_path):
    options = BrokerOptions()
    options.ttl = 3

    assert vars(effective_options(options, {}, tmp_path)) == vars(options)


def test_the_file_stands_above_the_program_and_the_environment_above_both(effective):
    options = BrokerOptions()
    options.ttl, options.metrics_port, options.metrics_address = 3, 1, "localhost"

    found = effective(
        'broker { ttl = 7 metrics { port = 4040 address = "::1" } }',
        options,
        BROKER_METRICS_PORT="5050",
    )

    assert (found.ttl, found.metrics_port, found.metrics_address) == (7, 5050, "::1")
    assert (options.ttl, options.metrics_port) == (3, 1)


def test_every_kind_of_value_is_read(effective):
    found = effective(
        "broker { disable-ssl = true disable-forwarding = true peer-buffer-size = 9 "
        'peer-overflow-policy = "drop_oldest" metrics.endpoint-name = "one" }\n'
        "caf { logger { console { verbosity = quiet } } logger.file.verbosity = 'x }"
    )

    assert (found.disable_ssl, found.forward, found.peer_buffer_size) == (True, False, 9)
    assert (found.peer_overflow_policy, found.metrics_endpoint_name) == ("drop_oldest", "one")
    assert (found.console_verbosity, found.file_verbosity) == ("quiet", "'x")


def test_metrics_can_be_switched_off_from_outside(effective):
    options = BrokerOptions()
    options.metrics_port = 0

    assert effective("", options, BROKER_METRICS_PORT="-1").metrics_port == -1


def test_a_program_may_ignore_both(effective):
    options = BrokerOptions()
    options.ignore_broker_conf = True

    assert effective("no file at all {", options, BROKER_METRICS_PORT="x") is options


def test_a_key_that_is_not_known_is_told_and_those_of_others_are_not(effective, caplog):
    effective("broker.tttl = 5\ncaf.scheduler.max-threads = 2")

    assert "line 1: broker.tttl is unknown" in caplog.text
    assert "caf" not in caplog.text


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("broker.ttl = many", "line 1: broker.ttl = 'many' is not a number"),
        ("broker.ttl = 0", "BrokerOptions.ttl must be one of 1 to 65535, not 0"),
        ("broker.ttl = [1]", "is not a number"),
        (
            "\nbroker.disable-ssl = 1",
            "line 2: broker.disable-ssl = '1' is not a truth value (true or false)",
        ),
        ("broker.peer-overflow-policy = forget", "drop_newest"),
        ("broker {", "broker.conf: line 1"),
        ("# " + "x" * FILE_LIMIT, "larger than 1,048,576 B"),
    ],
)
def test_what_means_nothing_is_refused_with_file_line_and_value(effective, text, told):
    with pytest.raises(InvalidOption) as caught:
        effective(text)

    assert "broker.conf: " in str(caught.value)
    assert told in str(caught.value)


def test_a_file_that_is_no_text_is_refused(tmp_path):
    (tmp_path / FILE_NAME).write_bytes(b"\xff\xfe")

    with pytest.raises(InvalidOption, match="UTF-8"):
        effective_options(BrokerOptions(), {}, tmp_path)


def test_an_endpoint_reads_the_file_of_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / FILE_NAME).write_text("broker { ttl = 4 disable-ssl = true }")
    monkeypatch.chdir(tmp_path)
    configuration = Configuration()

    with Endpoint(configuration) as endpoint:
        assert endpoint.hub.core.ttl == 4
        assert endpoint._own_tls is None

    assert configuration.options.ttl == 20
