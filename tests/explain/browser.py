"""A headless Chromium, driven through its debugging pipe: two file descriptors, JSON ended by a zero byte."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
LIMIT_S = 60.0


def chromium() -> str | None:
    """The path of a browser, or None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One tab. ``errors`` has what its console and its scripts complained of, ``requests`` every address that
    was asked for."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._buffer = b""
        self._next = 0
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._loaded = False
        target = self._send("Target.createTarget", url="about:blank")["targetId"]
        attached = self._send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def open(self, path: Path, *, width: int = 1440, height: int = 900, theme: str = "light") -> None:
        """Load a file in a window of this size and wait until it has loaded."""
        self.window(width, height, theme=theme)
        self.errors.clear()
        self.requests.clear()
        self._loaded = False
        self.call("Page.navigate", url=path.resolve().as_uri())
        self._until(lambda: self._loaded)

    def window(self, width: int, height: int, *, theme: str = "light") -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression in the page."""
        reply = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in reply, reply["exceptionDetails"]
        return reply["result"].get("value")

    def text(self, selector: str) -> str:
        """What an element says, on one line, with plain dashes and times signs."""
        said = str(self.run(f"document.querySelector({json.dumps(selector)}).innerText"))
        return " ".join(said.split()).replace("\u2013", "-").replace("\u00d7", "x")

    def point(self, selector: str) -> None:
        """Move the pointer to the middle of an element, as a hand would."""
        x, y = self._middle(selector)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, selector: str) -> None:
        x, y = self._middle(selector)
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1, buttons=1)

    def press(self, key: str) -> None:
        codes = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39}
        codes |= {"ArrowDown": 40, "Home": 36, "End": 35}
        for kind in ("rawKeyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key]
            )

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def pdf(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.printToPDF", printBackground=False)["data"]))

    def call(self, method: str, **params: object) -> dict[str, Any]:
        """A command to the tab, and its answer."""
        return self._send(method, session=self._session, **params)

    def _middle(self, selector: str) -> tuple[float, float]:
        """Scroll to an element: where its middle is. The pointer waits in the margin meanwhile, for what
        scrolls by under a pointer is pointed at."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
        x, y = self.run(f"({_MIDDLE})({json.dumps(selector)})")
        return x, y

    def _send(self, method: str, *, session: str | None = None, **params: object) -> dict[str, Any]:
        self._next += 1
        number = self._next
        message: dict[str, object] = {"id": number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        answer: dict[str, Any] = {}
        while answer.get("id") != number:
            answer = self._receive()
        assert "error" not in answer, (method, answer)
        return dict(answer["result"])

    def _until(self, ready: Any) -> None:
        while not ready():
            self._receive()

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + LIMIT_S
        while b"\0" not in self._buffer:
            left = max(0.0, deadline - time.monotonic())
            readable, _, _ = select.select([self._from], [], [], left)
            assert readable, f"the browser says nothing for {LIMIT_S:.0f} s"
            part = os.read(self._from, 1 << 20)
            assert part, "the browser has ended"
            self._buffer += part
        text, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(text)
        self._notice(message.get("method", ""), message.get("params", {}))
        return message

    def _notice(self, event: str, params: dict[str, Any]) -> None:
        if event == "Page.loadEventFired":
            self._loaded = True
        elif event == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(params["args"]))
        elif event == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(params["entry"]["text"])


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser with an empty profile, ended with everything it started."""
    path = chromium()
    assert path is not None
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = _start(path, profile, to_read, from_write)
        os.close(to_read)
        os.close(from_write)
        try:
            yield Browser(to_write, from_read)
        finally:
            os.close(to_write)
            os.close(from_read)
            _end(process)


_MIDDLE = """
async (selector) => {
  const element = document.querySelector(selector);
  element.scrollIntoView({ block: "center" });
  await new Promise(requestAnimationFrame);
  const { x, y, width, height } = element.getBoundingClientRect();
  return [x + width / 2, y + height / 2];
}
"""
# Chromium reads commands from descriptor 3 and answers on 4.
_LAUNCH = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4);"
    " os.execv(sys.argv[3], sys.argv[3:])"
)
_OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


def _start(path: str, profile: str, to_read: int, from_write: int) -> subprocess.Popen[bytes]:
    high = [fcntl.fcntl(each, fcntl.F_DUPFD, 10) for each in (to_read, from_write)]
    command = [sys.executable, "-c", _LAUNCH, *map(str, high), path, *_OPTIONS, f"--user-data-dir={profile}"]
    process = subprocess.Popen(
        command,
        pass_fds=high,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    for each in high:
        os.close(each)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
