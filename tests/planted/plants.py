"""The bugs that have to be found by what `@cluster_test(faults=swarm())` does by default."""

from typing import Final

from callboard.mqtt.router.wills import Wills
from callboard.proxies.lifetime.lifetimes import Lifetimes
from callboard.simulation import (
    AlwaysBroken,
    MessageLost,
    NotLinearizable,
    OutOfOrder,
)
from tests.planted import raft, services
from tests.planted.plant import Plant
from tests.planted.raft import Member
from tests.planted.services import Bank, Candidate, Feed, Guard, Tally, Teller

PLANTS: Final = (
    Plant(
        "lost update",
        services.tally,
        Tally,
        "on_number",
        "await self.sleep(0.01)\n    seen = self.total",
        "seen = self.total\n    await self.sleep(0.01)",
        NotLinearizable,
    ),
    Plant(
        "double delivery",
        services.bank,
        Bank,
        "on_pay",
        "if msg.name not in self.paid:",
        "if True:",
        NotLinearizable,
    ),
    Plant(
        "forgotten fsync",
        services.bank,
        Bank,
        "on_pay",
        "self.file.fsync()",
        "pass",
        NotLinearizable,
    ),
    Plant(
        "stale read after failover",
        raft.scenario,
        Member,
        "on_do",
        "term, index =",
        "if msg.value == 'read':\n        return self.read(self.commit - 1)\n    term, index =",
        NotLinearizable,
    ),
    Plant(
        "order after reconnect",
        services.feed,
        Feed,
        "on_number",
        "self.box.appendleft(number)",
        "self.box.append(number)",
        OutOfOrder,
    ),
    Plant(
        "timer across a pause",
        services.lease,
        Guard,
        "on_guarded",
        "if msg.token < self.token:",
        "if False:",
        AlwaysBroken,
    ),
    Plant(
        "two masters",
        services.masters,
        Candidate,
        "on_text",
        "len(self.voters) / 2",
        "len(answers) / 2",
        AlwaysBroken,
    ),
    Plant(
        "lost will",
        services.wills,
        Wills,
        "end",
        "if has_will and delay > 0:",
        "if has_will and connection.session.expiry > 0:\n        return None\n"
        "    if has_will and delay > 0:",
        MessageLost,
    ),
    Plant(
        "unbounded retry",
        services.bank,
        Teller,
        "on_pay",
        "range(8)",
        "range(10**9)",
        AlwaysBroken,
    ),
    Plant(
        "missed monitor",
        services.monitors,
        Lifetimes,
        "renew",
        "for proxy in proxies:",
        "for proxy in ():",
        AlwaysBroken,
    ),
    Plant(
        "forgotten fsync of a vote",
        raft.scenario,
        Member,
        "save_vote",
        "self.file.fsync()",
        "pass",
        NotLinearizable,
    ),
    Plant(
        "forgotten fsync of the log",
        raft.scenario,
        Member,
        "save_entries",
        "self.file.fsync()",
        "pass",
        NotLinearizable,
    ),
    Plant(
        "an older term committed by count",
        raft.scenario,
        Member,
        "count",
        " and self.log[most - 1][0] == self.term",
        "",
        NotLinearizable,
    ),
    Plant(
        "a vote for a shorter log",
        raft.scenario,
        Member,
        "on_vote",
        " or not is_current",
        "",
        NotLinearizable,
    ),
)
