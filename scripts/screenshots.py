"""Pictures of the dashboard for the docs: `python -m scripts.screenshots`."""

import threading
from pathlib import Path

import callboard.broker as broker
from callboard import Actor, Node, handler
from tests.callboard.dashboard.browser import Browser, a_browser

PLACE = Path(__file__).parents[1] / "docs" / "pictures"


class Till(Actor):
    """Answers asks."""

    @handler
    def text(self, message: str) -> str:
        """Answer."""
        return message


class Sensor(Till):
    """Sends readings."""


def main() -> None:
    """Start a cluster, let it work, and take a picture of each page that the docs show."""
    PLACE.mkdir(exist_ok=True)
    with (
        Node("shop", dashboard=True, actions=True) as shop,
        Node("east") as east,
        Node("west") as west,
        Node("office") as office,
        a_browser() as browser,
    ):
        shop.listen("127.0.0.1", 0)
        west.listen("127.0.0.1", 0)
        for node in (east, west, office):
            node.connect(shop.address)
        office.connect(west.address)
        till = east.spawn(Till)
        east.register("till", till)
        sensors = [office.ref(str(west.spawn(Sensor))) for _ in range(200)]
        far = shop.ref(str(till))
        stop = threading.Event()

        def work() -> None:
            while not stop.wait(0.02):
                for sensor in sensors[:20]:
                    sensor.tell("reading")
                far.tell("sold")

        with broker.Endpoint(node=shop) as endpoint, endpoint.attach_master("prices") as store:
            store.put("apple", 0.5, 3600)
            worker = threading.Thread(target=work)
            worker.start()
            try:
                take(browser, shop.dashboard_url, east)
            finally:
                stop.set()
                worker.join()


def take(browser: Browser, link: str, victim: Node) -> None:
    """Take the pictures; at last of a node that is lost, in the dark."""
    pause = threading.Event().wait
    browser.size(1280, 900)
    browser.open(link).shows("exact")
    pause(8)
    browser.driver.save_screenshot(str(PLACE / "dashboard.png"))
    browser.go(link, "actors").shows("Sensor")
    pause(2)
    browser.driver.save_screenshot(str(PLACE / "dashboard-actors.png"))
    browser.go(link, "overview").shows("exact")
    browser.dark(is_dark=True)
    victim.close()
    browser.shows("east is lost")
    pause(2)
    browser.driver.save_screenshot(str(PLACE / "dashboard-dark.png"))


if __name__ == "__main__":
    main()
