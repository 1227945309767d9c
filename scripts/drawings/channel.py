"""A channel: one event is lost on the way, and requested again."""

from scripts.drawings.picture import Picture
from scripts.drawings.sequence import Sequence


def draw() -> str:
    """Return the picture."""
    picture = Picture("A channel: event 2 is lost, asked for, and consumed in its turn.")
    chart = Sequence(picture, {"producer": 90, "consumer": 420})
    chart.message("producer", "consumer", "Handshake(first=1)")
    chart.message("consumer", "producer", "CumulativeAck(0)")
    chart.message("producer", "consumer", "Event(1)")
    chart.note("consumer", "consumes 1", kind="green")
    chart.message("producer", "consumer", "Event(2)", kind="warm", is_lost=True)
    chart.message("producer", "consumer", "Event(3)")
    chart.note("consumer", "keeps 3: 2 is missing", kind="warm")
    chart.message("consumer", "producer", "Nack([2]), two ticks later")
    chart.message("producer", "consumer", "Event(2), once more")
    chart.note("consumer", "consumes 2, then 3", kind="green")
    chart.message("consumer", "producer", "CumulativeAck(3)")
    chart.note("producer", "forgets 1 to 3", kind="green")
    chart.message("producer", "consumer", "Heartbeat(3), every five ticks")
    chart.end()
    picture.caption(
        chart.y + 6,
        "~Had the producer given event 2 up, RetransmitFailed(2) would have come in its place, "
        "and the consumer would be told of the gap by consume_nil.",
    )
    return picture.svg()
