"""A headless Chromium, driven through the DevTools protocol over a pipe: pages, console, requests, pictures, PDF."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
)


class Browser:
    """One tab of a running Chromium."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read = write, os.fdopen(read, "rb")
        self._buffer = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol; events that arrive before its result are kept."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            received = self._receive()
            if received.get("id") == self._number:
                assert "error" not in received, (method, received["error"])
                return dict(received["result"])
            self.events.append(received)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            chunk = self._read.read1()
            assert chunk, "Chromium has ended"
            self._buffer += chunk
        text, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(text))

    def open(self, url: str, width: int = 1400, *, dark: bool = False) -> None:
        """Load a page in a window of this width and wait until it is complete."""
        self.events.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=url)
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())

    def evaluate(self, script: str) -> Any:
        """Return the value of a JavaScript expression."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    @property
    def problems(self) -> list[str]:
        """Messages in the console, and exceptions, since the page was opened."""
        names = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [json.dumps(event["params"]) for event in self.events if event["method"] in names]

    @property
    def requests(self) -> list[str]:
        """Addresses that were requested since the page was opened, without those that are part of the page."""
        sent = [event["params"] for event in self.events if event["method"] == "Network.requestWillBeSent"]
        addresses = [str(each["request"]["url"]) for each in sent]
        return [address for address in addresses if not address.startswith("data:")]

    def screenshot(self, path: Path) -> None:
        """Write a picture of the whole page."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        picture = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(picture["data"]))

    def print(self, path: Path) -> None:
        """Print the page into a PDF file."""
        printed = self.call("Page.printToPDF", printBackground=False)
        path.write_bytes(base64.b64decode(printed["data"]))


@contextmanager
def running_browser(profile: Path) -> Iterator[Browser]:
    """Start Chromium with an empty profile, and end it."""
    assert PROGRAM is not None
    read_commands, write_commands = os.pipe()
    read_results, write_results = os.pipe()

    # The protocol's pipes are file descriptors 3 and 4 of the browser.
    shell = f'exec "$0" "$@" 3<&{read_commands} 4>&{write_results}'
    command = ["/bin/bash", "-c", shell, PROGRAM, *FLAGS, "--remote-debugging-pipe", f"--user-data-dir={profile}"]
    process = subprocess.Popen(
        command, pass_fds=(read_commands, write_results), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(read_commands)
    os.close(write_results)
    browser = Browser(write_commands, read_results)
    try:
        yield browser
    finally:
        process.terminate()
        process.wait(timeout=20)
        os.close(write_commands)
        browser._read.close()
