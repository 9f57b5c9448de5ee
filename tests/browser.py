"""A headless Chromium, driven over its DevTools socket."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--mute-audio",
    "--disable-background-networking",
    "--remote-debugging-port=0",
    "--disable-ipc-flooding-protection",  # tests open thousands of addresses in a row
    "--window-size=1280,1100",
)


class Browser:
    """One tab; a `wait` that fails says what it waited for."""

    def __init__(self, folder: Path) -> None:
        """Start Chromium with a profile in `folder`, and connect to its first tab."""
        from websockets.sync.client import connect

        self.folder, self.count, self.events = folder, 0, []
        profile = folder / "profile"
        self.process = subprocess.Popen(
            [str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        port = _until(
            lambda: (profile / "DevToolsActivePort").read_text().split()[0],
            "chromium to open its port",
        )
        pages = _until(lambda: _tabs(port), "chromium to open a tab")
        self.opened = ExitStack()
        self.socket = self.opened.enter_context(
            connect(pages[0]["webSocketDebuggerUrl"], max_size=None, compression=None)
        )

    def close(self) -> None:
        self.opened.close()
        self.process.terminate()
        self.process.wait(timeout=20)

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Return the result of one DevTools command; events that arrive before it go to `events`."""
        self.count += 1
        self.socket.send(json.dumps({"id": self.count, "method": method, "params": params}))
        while True:
            answer = json.loads(self.socket.recv(timeout=60))
            if answer.get("id") == self.count:
                assert "error" not in answer, answer
                return answer["result"]
            if "method" in answer:
                self.events.append(answer)

    def js(self, expression: str) -> Any:
        """Return the value of a JavaScript expression on the page; while it reads an element that
        is not drawn yet, it is evaluated again.
        """
        end = time.monotonic() + 45.0
        while True:
            result = self.send(
                "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
            )
            failed = result.get("exceptionDetails")
            if failed is None:
                return result["result"].get("value")
            undrawn = "of null" in str(failed)
            assert undrawn, (expression, failed)
            assert time.monotonic() < end, (expression, failed)
            time.sleep(0.1)

    def wait(self, expression: str, why: str, seconds: float = 45.0) -> Any:
        """Return the value of the expression as soon as it is true; fail with `why` after `seconds`."""
        return _until(lambda: self.js(expression), f"{why}: {expression}", seconds)

    def open(self, address: str, until: str = "document.readyState === 'complete'") -> None:
        """Load an address, even one that is open already, and wait until an expression is true."""
        self.send("Page.navigate", url="about:blank")
        self.send("Page.navigate", url=address)
        self.wait(f"location.href !== 'about:blank' && ({until})", "the page to be drawn")

    def size(self, width: int, height: int = 900) -> None:
        """Set the size of the window; below 600 pixels it counts as a phone."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def watch(self) -> None:
        """Record requests and what the page logs, in `events`."""
        for domain in ("Network", "Log", "Runtime", "Page"):
            self.send(f"{domain}.enable")
        self.events.clear()

    def requests(self) -> list[str]:
        """Return the addresses that were requested since `watch`."""
        self.js("0")  # reads the events that have come
        sent = (each for each in self.events if each["method"] == "Network.requestWillBeSent")
        return [each["params"]["request"]["url"] for each in sent]

    def errors(self) -> list[str]:
        """Return the errors that the page logged since `watch`."""
        self.js("0")
        found = []
        for each in self.events:
            if each["method"] == "Runtime.exceptionThrown":
                found.append(str(each["params"]["exceptionDetails"]))
            elif each["method"] == "Log.entryAdded" and each["params"]["entry"]["level"] == "error":
                found.append(each["params"]["entry"]["text"])
        return found

    def focus(self, selector: str) -> None:
        found = f"document.querySelector({json.dumps(selector)})"
        self.wait(f"{found} !== null", "an element")
        self.js(f"{found}.scrollIntoView({{block: 'center'}}); {found}.focus()")

    def key(self, name: str, code: int, text: str = "") -> None:
        common = {"key": name, "code": name, "windowsVirtualKeyCode": code}
        self.send(
            "Input.dispatchKeyEvent", type="keyDown", **common, **({"text": text} if text else {})
        )
        self.send("Input.dispatchKeyEvent", type="keyUp", **common)

    def write(self, text: str) -> None:
        """Replace the text of the focused field, and press Enter."""
        self.js("document.activeElement.select && document.activeElement.select()")
        self.send("Input.insertText", text=text)
        time.sleep(0.2)  # the list of a select box follows what is typed
        self.key("Enter", 13, "\r")

    def click(self, selector: str) -> None:
        self.focus(selector)
        self.js(f"document.querySelector({json.dumps(selector)}).click()")

    def drop(self, path: Path) -> None:
        """Give a file to the page's file field."""
        self.wait("document.querySelector('input[type=file]') !== null", "the file field")
        found = self.send(
            "Runtime.evaluate", expression="document.querySelector('input[type=file]')"
        )
        self.send("DOM.setFileInputFiles", files=[str(path)], objectId=found["result"]["objectId"])

    def texts(self, selector: str) -> list[str]:
        """Return the text of every element that a selector names."""
        found = f"[...document.querySelectorAll({json.dumps(selector)})]"
        return self.js(f"{found}.map((each) => each.textContent)")

    def press(self, selector: str, text: str) -> None:
        """Click the element that a selector names and that has this text."""
        found = f"[...document.querySelectorAll({json.dumps(selector)})]"
        self.js(f"{found}.find((each) => each.textContent === {json.dumps(text)}).click()")

    def text(self) -> str:
        return self.js("document.body.innerText")

    def link(self) -> str:
        return self.js("location.hash")

    def picture(self, path: Path) -> bytes:
        """Write a screenshot to a file, and return its bytes."""
        data = base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return data


def _tabs(port: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=10) as answer:
        return [tab for tab in json.load(answer) if tab["type"] == "page"]


def _until(read: Any, why: str, seconds: float = 60.0) -> Any:
    """Return the first true value of `read()`; fail after some seconds, with `why`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            found = read()
        except (OSError, IndexError):
            found = None
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"waited {seconds} s for {why}")
