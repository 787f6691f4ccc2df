"""A headless Chromium that a test drives by its debugging protocol: it needs only websockets."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

NAMES = ("chromium", "chromium-browser", "google-chrome")
DEADLINE_S = 120.0
PICTURES = os.environ.get("WEFT_PICTURES")  # a folder that takes the screenshots of the docs


def browser_path() -> str | None:
    """The browser of this machine, if it has one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One tab. It remembers every request, every line of the console, and every error."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket, self._number, self._session = socket, 0, ""
        self.requests: list[str] = []
        self.errors: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Sends a command and waits for its answer."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            command["sessionId"] = self._session
        self._socket.send(json.dumps(command))
        while True:
            message = json.loads(self._socket.recv(timeout=DEADLINE_S))
            if message.get("id") == self._number:
                assert "error" not in message, f"{method}: {message['error']}"
                result: dict[str, Any] = message["result"]
                return result
            self._hear(message)

    def _hear(self, message: dict[str, Any]) -> None:
        method, values = message.get("method", ""), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(values["request"]["url"])
        elif method == "Network.webSocketCreated":
            self.requests.append(values["url"])
        elif method == "Runtime.exceptionThrown":
            details = values["exceptionDetails"]
            self.errors.append(str(details.get("exception", {}).get("description", details)))
        elif method == "Runtime.consoleAPICalled" and values["type"] in ("error", "warning"):
            self.errors.append(str(values["args"]))
        elif method == "Log.entryAdded" and values["entry"]["level"] in ("error", "warning"):
            self.errors.append(f"{values['entry']['text']} {values['entry'].get('url', '')}")

    def open(self, url: str, width: int = 1280, height: int = 900) -> None:
        """Goes to a page."""
        self.size(width, height)
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.host", f"loading {url}")

    def size(self, width: int, height: int) -> None:
        """The size of the window."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=False)  # fmt: skip

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, script: str, what: str, seconds: float = DEADLINE_S) -> None:
        """Waits until an expression is true."""
        end = time.monotonic() + seconds
        while not self.run(f"Boolean({script})"):
            assert time.monotonic() < end, f"{what}: not within {seconds} s; {self.errors}"
            time.sleep(0.2)

    def picture(self, path: Path, height: int | None = None) -> None:
        """A screenshot of the page from its top, down to `height`."""
        wide = self.run("innerWidth")
        tall = height or self.run("document.documentElement.scrollHeight")
        clip = {"x": 0, "y": 0, "width": wide, "height": tall, "scale": 1}
        shot = self.call(
            "Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True
        )
        path.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def open_page(folder: Path) -> Iterator[Page]:
    """A browser with one tab. `folder` takes what it writes."""
    path = browser_path()
    assert path is not None
    process = subprocess.Popen(
        [path, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0",
         f"--user-data-dir={folder / 'profile'}", "--no-first-run", "--disable-dev-shm-usage",
         "--disable-background-networking", "--disable-component-update", "about:blank"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        port = folder / "profile" / "DevToolsActivePort"
        end = time.monotonic() + DEADLINE_S
        while not (port.exists() and len(port.read_text().splitlines()) == 2):
            assert process.poll() is None, f"{path} ended with {process.returncode}"
            assert time.monotonic() < end, f"{path} opened no debugging port"
            time.sleep(0.1)
        number, place = port.read_text().splitlines()
        with connect(
            f"ws://127.0.0.1:{number}{place}", max_size=None, ping_interval=None
        ) as socket:
            yield Page(socket)
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def served(folder: Path, port: int = 0) -> Iterator[str]:
    """`weft web` as a process of its own; its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "weft", "web", str(folder), "--port", str(port), "--json"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        document = ""
        while not document.endswith("}\n"):
            line = process.stdout.readline()
            assert line, "weft web has ended"
            document += line
        yield json.loads(document)["url"]
    finally:
        process.terminate()
        process.wait(60)


def take(page: Page, name: str, width: int = 1280) -> None:
    """A screenshot for the docs, where somebody wants it."""
    if PICTURES:
        page.size(width, 900)
        time.sleep(1)  # the page draws again for its new width
        page.picture(Path(PICTURES) / f"{name}.png")
