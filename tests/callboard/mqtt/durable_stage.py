"""A router with a journal on a disk that loses unsynced data."""

from callboard.mqtt.journal.journal import RouterJournal
from callboard.mqtt.router.limits import Limits
from callboard.simulation.disk import SimulatedDisk
from tests.callboard.mqtt.stage import Stage, deliver

LASTING = {"clean": False, "expiry": 1000}


class DurableStage(Stage):
    """A router with a journal on a simulated disk."""

    def __init__(self, limits: Limits | None = None, least_growth: int = 1 << 30) -> None:
        super().__init__(limits, is_durable=True)
        self.disk = SimulatedDisk(1)
        #: Seconds of the routers before this one; each begins its own clock at 0.
        self.lived = 0.0
        self._least_growth = least_growth
        self._limits = limits
        self._open()

    def _open(self) -> None:
        self.journal = RouterJournal(
            "/mqtt",
            now=lambda: self.now,
            disk=self.disk,
            wall_clock=lambda: int((1e9 + self.lived + self.now) * 1e9),
            least_growth=self._least_growth,
            segment_bytes=20_000,
        )
        self.journal.restore(self.machine)

    def run(self) -> None:
        while True:
            turn = self.machine.run_turn(self.now)
            self.turns.append(turn)
            if turn.records:
                self.journal.write(turn.records, self.machine)
            for link, notifications in turn.transmits:
                deliver(link, notifications)
            self.journal.fetch(turn.fetches, self.machine)
            if self.machine.is_idle:
                return

    def crash(self) -> None:
        """Crash the router and lose unsynced data of the disk; start again."""
        self.disk.crash()
        self.lived += self.now
        Stage.__init__(self, self._limits, is_durable=True)
        self._open()
