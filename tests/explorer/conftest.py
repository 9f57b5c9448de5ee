"""The page served as `ropewalk explore` serves it, once for all files, and a browser for a file of
tests.
"""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from browser import Browser


@pytest.fixture(autouse=True)
def main_kept(monkeypatch):
    """streamlit's harness leaves its script in the place of the main module, and processes spawned
    later would run it.
    """
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    opened = Browser(tmp_path_factory.mktemp("chromium"))
    yield opened
    opened.close()


@pytest.fixture
def pictures(tmp_path) -> Path:
    """Where screenshots go; CI keeps them."""
    return Path(os.environ.get("ROPEWALK_SCREENSHOTS") or tmp_path)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


#: the file that reads in the view Model of the docs' screenshot; the tests have a tiny model
MODEL = os.environ.get("ROPEWALK_MODEL")


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """Yield the address of a running page that has a report; all that a page is set to is in its
    link, so files share it.
    """
    pytest.importorskip("streamlit", reason="needs streamlit: pip install 'ropewalk[explorer]'")
    folder, port = tmp_path_factory.mktemp("explore"), free_port()
    (folder / "report.html").write_text("<h1>Studies of the lab</h1>", encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "ropewalk_cli",
        "explore",
        "--port",
        str(port),
        "--no-browser",
        "--report",
        "report.html",
    ]
    if MODEL:
        (folder / Path(MODEL).name).symlink_to(
            Path(MODEL).resolve()
        )  # the page shows the path as it was given
    command += ["--model", Path(MODEL).name if MODEL else "tiny"]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "HOME": str(folder),
    }
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            assert process.poll() is None, (folder / "log").read_text()
            try:
                with urllib.request.urlopen(f"{address}/_stcore/health", timeout=5):
                    break
            except OSError:
                time.sleep(0.1)
        else:
            raise AssertionError("the page did not start: " + (folder / "log").read_text())
        yield address
    finally:
        process.terminate()
        process.wait(timeout=20)
