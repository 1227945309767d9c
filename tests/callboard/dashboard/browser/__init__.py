"""Tests in a real headless Chromium, driven by selenium."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.polling import eventually

#: Names of the program on Debian and elsewhere.
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")


def why_not() -> str:
    """Return why no browser can be driven here, or ""."""
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "needs selenium"
    if not any(map(shutil.which, CHROMIUMS)) or not shutil.which("chromedriver"):
        return "needs chromium and chromium-driver of the system"
    return ""


class Browser:
    """One window of a browser."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, url: str) -> "Browser":
        self.driver.get(url)
        return self

    def go(self, link: str, route: str) -> "Browser":
        """Open a page of a dashboard by its route, and wait until it is drawn."""
        base = link.partition("?token=")[0]
        if not self.driver.current_url.startswith(base):
            self.driver.get(link)
        leave = """const main = document.querySelector('main'), hash = arguments[0]
            if (main && location.hash !== hash) main.dataset.left = 'true'
            location.hash = hash"""
        self.script(leave, f"#/{route}")
        is_left = "return Boolean(document.querySelector('main[data-left]'))"
        self.until(lambda: not self.script(is_left))
        return self

    def script(self, text: str, *args: Any) -> Any:
        return self.driver.execute_script(text, *args)

    @property
    def text(self) -> str:
        return str(self.script("return document.body ? document.body.innerText : ''"))

    def shows(self, *texts: str, seconds: float = 60.0) -> None:
        """Wait until the page has all these texts."""
        try:
            eventually(lambda: not self._missing(texts), seconds, interval=0.05)
        except AssertionError as error:
            shown = f"{self.driver.current_url} has no {self._missing(texts)}, but:"
            raise AssertionError(f"{error}\n{shown}\n{self.text}\n{self.errors()}") from None

    def _missing(self, texts: Sequence[str]) -> list[str]:
        """Return the texts that the page does not have."""
        text = self.text
        return [each for each in texts if each not in text]

    def click(self, text: str) -> None:
        """Click the button or link of that text: found and clicked before the next picture."""
        click = """const found = [...document.querySelectorAll('button,a')]
            .find((each) => each.innerText.trim() === arguments[0])
            found?.click()
            return Boolean(found)"""
        try:
            eventually(lambda: self.script(click, text), 60, interval=0.05)
        except AssertionError:
            raise AssertionError(f"nothing is called {text!r} in:\n{self.text}") from None

    def write(self, label: str, text: str) -> None:
        """Write into the field of that label, once it is there."""
        field = self.first(f"[aria-label='{label}']")
        field.clear()
        field.send_keys(text)

    def first(self, selector: str) -> Any:
        """Wait for an element, and return it."""
        found = self.until(lambda: self.driver.find_elements("css selector", selector))
        return found[0]

    def size(self, width: int, height: int, *, is_phone: bool = False) -> None:
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_phone},
        )

    def dark(self, is_dark: bool) -> None:
        scheme = "dark" if is_dark else "light"
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def errors(self) -> list[str]:
        """Return what the console complained about since the last call.

        What became of the pages of other servers, which have ended, is left out.
        """
        told = [each["message"] for each in self.driver.get_log("browser")]
        here = urlsplit(self.driver.current_url).netloc
        return [each for each in told if urlsplit(each).netloc in ("", here)]

    def until(self, check: Callable[[], Any], seconds: float = 60.0) -> Any:
        return eventually(check, seconds, interval=0.02)


@contextmanager
def a_browser() -> Iterator[Browser]:
    """Start a browser, and end it and its driver; skips the test where there is none."""
    if reason := why_not():
        pytest.skip(reason)
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    options = ChromeOptions()
    options.binary_location = next(filter(None, map(shutil.which, CHROMIUMS)))
    for each in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "disable-gpu"):
        options.add_argument(f"--{each}")
    options.add_argument("--window-size=1280,860")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
