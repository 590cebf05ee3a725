"""A real browser, driven over its DevTools pipe: no driver and no package is needed."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PATIENCE = 60.0


class Browser:
    """One page in a headless chromium; collects what the console and the network say.

    Args:
      profile: an empty folder for the browser's own files.
    """

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM
        to_it, self._write = os.pipe()
        self._read, from_it = os.pipe()
        # the pipe's ends must be 3 and 4 in the browser
        shell = f'exec "$0" "$@" 3<&{to_it} 4>&{from_it}'
        self._process = subprocess.Popen(
            [
                *("bash", "-c", shell, CHROMIUM, "--headless=new", "--remote-debugging-pipe"),
                *("--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"),
                *("--disable-dev-shm-usage", f"--user-data-dir={profile}", "about:blank"),
            ],
            pass_fds=(to_it, from_it),
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        os.close(to_it)
        os.close(from_it)
        self._number, self._rest, self._session = 0, b"", ""
        self.complaints: list[str] = []
        self.requests: list[str] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(t["targetId"] for t in targets if t["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=page, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._session = ""
        try:
            self.call("Browser.close")  # so that it ends its children too
            self._process.wait(PATIENCE)
        except (AssertionError, OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Sends one command and waits for its answer."""
        self._number += 1
        command: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            command["sessionId"] = self._session
        os.write(self._write, json.dumps(command).encode() + b"\0")
        while True:
            message = self._next()
            if message.get("id") == self._number:
                assert "error" not in message, message
                return dict(message["result"])

    def _next(self) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE
        while b"\0" not in self._rest:
            ready = select.select([self._read], [], [], max(0, until - time.monotonic()))[0]
            assert ready, "the browser does not answer"
            got = os.read(self._read, 1 << 20)
            assert got, "the browser ended"
            self._rest += got
        first, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, event: str, said: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(said["exceptionDetails"])[:2000])
        elif event == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(said["args"])[:2000])
        elif event == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
            self.complaints.append(said["entry"]["text"])
        elif event == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])

    def open(
        self, page: Path, *, width: int = 1280, height: int = 900, dark: bool = False
    ) -> float:
        """Opens a page from disk; returns the seconds until it was ready."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        begun = time.monotonic()
        self.call("Page.navigate", url=page.resolve().as_uri())
        while self.evaluate("document.documentElement?.dataset.ready || ''") != "yes":
            assert time.monotonic() - begun < PATIENCE, f"never ready: {self.complaints}"
            time.sleep(0.02)
        return time.monotonic() - begun

    def evaluate(self, code: str) -> Any:
        """The value of an expression in the page."""
        found = self.call(
            "Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def press(self, key: str) -> None:
        """Presses a key in whatever has the focus."""
        text = {"Enter": "\r", " ": " "}.get(key, "")
        for kind in ("keyDown", "keyUp"):
            extra = {"text": text} if text and kind == "keyDown" else {}
            code = {"Enter": 13, "ArrowRight": 39, "ArrowLeft": 37, "ArrowDown": 40, " ": 32}
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code.get(key, 0),
                **extra,
            )

    def point(self, x: float, y: float) -> None:
        """Moves the pointer."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """Takes a picture of the page."""
        shot = self.call(
            "Page.captureScreenshot",
            format="png",
            captureBeyondViewport=whole,
            **({"clip": self._all()} if whole else {}),
        )
        path.write_bytes(base64.b64decode(shot["data"]))

    def _all(self) -> dict[str, float]:
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}

    def printed(self) -> bytes:
        """The page as a PDF file, as a printer would get it."""
        found = self.call(
            "Page.printToPDF", printBackground=False, paperWidth=8.27, paperHeight=11.7
        )
        return base64.b64decode(found["data"])
