"""Topics of one node are recorded by another one, and read back from the log.

Run it with `python examples/recording.py`.
"""

import tempfile

from callboard import Endpoint, Node
from callboard.commitlog import LogReader


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        Node("sensors") as sensors,
        Node("archive") as archive,
    ):
        archive.listen("127.0.0.1", 0)
        sensors.connect(archive.address)  # usually from another machine
        publisher = Endpoint(node=sensors)

        with Endpoint(node=archive).record("/room", folder) as recording:
            publisher.await_filter_entry("/room")  # the archive's subscription has come here
            for number, celsius in enumerate([20.5, 20.7, 21.0], 1):
                publisher.publish(f"/room/{number}", {"celsius": celsius})
            sensors.drain(5.0)  # all of it has arrived
            recording.flush()  # and is on the disk

        for record in LogReader(folder):
            who = "sensors" if record.sender == sensors.node_id.hex() else "?"
            print(record.offset, record.topic, record.payload, "from", who)


if __name__ == "__main__":
    main()
