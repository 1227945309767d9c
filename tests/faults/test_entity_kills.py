"""Hosts of entities and their database killed again and again, under load.

`CALLBOARD_KILLS` says how often a host is killed. Every tenth time all are killed at once, and
every tenth time PostgreSQL is killed, too, and started again.
"""

import random
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.callboard.entity.state.postgresql_server import PostgresqlServer, new_server
from tests.faults import KILLS
from tests.faults.entity_load import Client, RowLoad, TicketLoad

HOSTS = 3


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
@pytest.mark.timeout(240 + 30 * KILLS)
def test_nothing_is_lost_twice_or_out_of_order_under_kills(
    kind: str, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    rng = random.Random(KILLS)
    seconds, restarts = [], 0
    with ExitStack() as stack:
        server: PostgresqlServer | None = None
        url = f"sqlite:{tmp_path}/state.db"
        if kind == "postgresql":
            server = new_server().start()
            stack.callback(server.close)
            url = server.new_database()
        client = Client(stack, url)
        hosts = [client.host("rows") for _ in range(HOSTS)]
        tickets, rows = TicketLoad(client), RowLoad(client)
        for number in range(1, KILLS + 1):
            time.sleep(rng.uniform(0.2, 0.8))
            killed = list(hosts) if number % 10 == 0 else [rng.choice(hosts)]
            began = time.monotonic()
            for victim in killed:
                victim.kill()
                victim.wait()
                hosts.remove(victim)
            if server is not None and number % 10 == 5:
                server.kill()
                server.start()
                restarts += 1
            if not hosts:
                hosts.append(client.host("rows"))
            tickets.until_all_answer()
            seconds.append(time.monotonic() - began)
            while len(hosts) < HOSTS:
                hosts.append(client.host("rows"))
        found = tickets.stop()
        told = ", ".join(f"{name} {count}" for name, count in found.items())
        figure(
            f"{kind}: {KILLS} SIGKILLs, {restarts} restarts of the database: {told}; all keys "
            f"answered after {statistics.median(seconds):.2f} s ({min(seconds):.2f} to "
            f"{max(seconds):.2f})"
        )
        reminders, jobs = rows.check()
        figure(f"{kind}: {reminders} reminders, missed 0; {jobs} jobs, none lost or again")
    assert found["acknowledged"] > 20 * KILLS
    wrong = ("missing", "twice", "out of order", "refused and kept")
    assert not any(found[each] for each in wrong), told
