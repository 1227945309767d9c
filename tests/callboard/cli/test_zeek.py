"""`callboard zeek connect` at a Zeek that is played."""

import threading

from callboard.cli import main
from tests.callboard.doors.zeeks import Zeek
from tests.polling import eventually


def test_connect_prints_what_zeek_publishes(capsys):
    with Zeek() as zeek:

        def say():
            eventually(zeek.filters)
            zeek.say("/zeek/other", 1)
            zeek.say("/zeek/notice", ["ü", 2])

        saying = threading.Thread(target=say)
        saying.start()
        url = zeek.url
        assert (
            main(["zeek", "connect", url, "--topic", "/zeek/n", "--count", "1", "--json"]) == 0
        )
        saying.join()

    said = capsys.readouterr()
    assert '{"topic": "/zeek/notice", "data": ["ü", 2]}' in said.out
    assert "7.0.0" in said.err


def test_nobody_there_and_a_wrong_address_are_one_line(capsys):
    assert main(["zeek", "connect", "ws://127.0.0.1:1", "--timeout", "0.3"]) == 1
    assert main(["zeek", "connect", "http://127.0.0.1:1"]) == 2
    lines = capsys.readouterr().err.splitlines()

    assert len(lines) == 2
    assert "nothing answers" in lines[0]
    assert "ws://HOST" in lines[1]
