# SPDX-License-Identifier: BSD-3-Clause
"""A headless Chromium, driven through chromedriver's HTTP interface (W3C WebDriver)."""

from __future__ import annotations

import base64
import json
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--window-size=1300,1000",
    # No network but this machine's own, whatever the page asks for.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


class Browser:
    """One session. Coordinates are pixels from the top left corner of an element."""

    def __init__(self, url: str) -> None:
        self._url = url

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Send one command and return its value; a refused one raises urllib.error.HTTPError."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, method=method)
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.loads(answer.read())["value"]

    def open(self, path: Path) -> None:
        """Load a file, and wait until the page says that it is drawn."""
        self.call("POST", "/url", {"url": path.as_uri()})
        self.wait("document.body.dataset.ready || document.body.dataset.failed")
        assert self.run("return document.body.dataset.failed || ''") == ""

    def go(self, url: str) -> None:
        """Load a page, and wait until its resources are loaded."""
        self.call("POST", "/url", {"url": url})

    def emulate(self, width: int, height: int = 900, dark: bool = False) -> None:
        """Make the window so many CSS pixels wide, and prefer a colour scheme."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        for command, params in (
            ("Emulation.setDeviceMetricsOverride", size),
            ("Emulation.setEmulatedMedia", {"features": [scheme]}),
        ):
            self.call("POST", "/goog/cdp/execute", {"cmd": command, "params": params})

    def complaints(self) -> list[str]:
        """Return warnings and errors of the console since the last call."""
        entries = self.call("POST", "/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] in ("WARNING", "SEVERE")]

    def run(self, script: str) -> Any:
        """Return what a script in the page returns."""
        return self.call("POST", "/execute/sync", {"script": script, "args": []})

    def wait(self, condition: str) -> None:
        """Wait for an expression to be true, for at most the driver's time for scripts."""
        script = (
            "const done = arguments[0];"
            f"(function look() {{ if ({condition}) done(true); else setTimeout(look, 20); }})();"
        )
        self.call("POST", "/execute/async", {"script": script, "args": []})

    def _place(self, selector: str, x: float, y: float) -> dict[str, Any]:
        """Scroll an element into view, and return a place of it in the window."""
        left, top = self.run(
            f"const e = document.querySelector({selector!r});"
            "e.scrollIntoView({block: 'center'});"
            "const b = e.getBoundingClientRect(); return [b.left, b.top]"
        )
        return {"origin": "viewport", "x": round(left + x), "y": round(top + y), "duration": 0}

    def hand(self, selector: str, x: float, y: float, *actions: dict[str, Any]) -> None:
        """Move the mouse to a place of an element, and do more with it there."""
        move = {"type": "pointerMove", **self._place(selector, x, y)}
        pointer = {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}}
        self.call("POST", "/actions", {"actions": [{**pointer, "actions": [move, *actions]}]})

    def wheel(self, selector: str, x: float, y: float, delta: int, shift: bool = False) -> None:
        """Turn the wheel over a place of an element."""
        scroll = {"type": "scroll", "deltaX": 0, "deltaY": delta, **self._place(selector, x, y)}
        pause = {"type": "pause", "duration": 0}
        keys = [{"type": "keyDown", "value": "\ue008"}, pause, {"type": "keyUp", "value": "\ue008"}]
        sources: list[dict[str, Any]] = [
            {"type": "wheel", "id": "wheel", "actions": [pause, scroll, pause]}
        ]
        if shift:
            sources.append({"type": "key", "id": "keys", "actions": keys})
        self.call("POST", "/actions", {"actions": sources})

    def picture(self, path: Path) -> None:
        """Write what the window shows as PNG."""
        path.write_bytes(base64.b64decode(self.call("GET", "/screenshot")))


@contextmanager
def browser() -> Iterator[Browser]:
    """Run a browser while the block runs.

    Raises:
        FileNotFoundError: If chromedriver is not installed.
    """
    server = subprocess.Popen(
        ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert server.stdout is not None
    try:
        line = next(line for line in server.stdout if "started successfully on port" in line)
        base = f"http://127.0.0.1:{int(line.rsplit(' ', 1)[1].strip().rstrip('.'))}"
        wanted = {
            "goog:chromeOptions": {"args": list(_OPTIONS)},
            "goog:loggingPrefs": {"browser": "ALL"},
            "timeouts": {"script": 60_000, "pageLoad": 60_000},
        }
        made = Browser(f"{base}/session").call(
            "POST", "", {"capabilities": {"alwaysMatch": wanted}}
        )
        page = Browser(f"{base}/session/{made['sessionId']}")
        try:
            yield page
        finally:
            page.call("DELETE", "")
    finally:
        server.terminate()
        server.wait(timeout=20)
