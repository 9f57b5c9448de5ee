"""The page as `ropewalk explore` serves it, the static one if it was built, and a browser."""

import functools
import http.server
import os
import socket
import threading
import time
from pathlib import Path

import pytest

from browser import CHROMIUM, Browser

ROOT = Path(__file__).parents[2]
BUILT = ROOT / "build" / "web"


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="session")
def local():
    """Yield the address of the page with its server, which has a report and a tiny model."""
    pytest.importorskip("starlette", reason="needs starlette: pip install 'ropewalk[explore]'")
    import uvicorn

    from ropewalk_lab.page.server import HOME, application

    report = ROOT / "docs" / "doctor.md"
    with socket.socket() as free:
        free.bind((HOME, 0))
        port = free.getsockname()[1]
    config = uvicorn.Config(
        application(report, "tiny", "https://page.example/rope/"),
        host=HOME,
        port=port,
        log_level="error",
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.02)
    yield f"http://{HOME}:{port}"
    server.should_exit = True
    thread.join(timeout=10)


@pytest.fixture(scope="session")
def static():
    """Yield the address of the built page on a server of plain files."""
    if not (BUILT / "python" / "stdlib.zip").exists():
        pytest.skip("the page was not built: make web")
    handler = functools.partial(Quiet, directory=str(BUILT))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip("needs chromium; .ci/run installs it")
    pytest.importorskip("websockets", reason="needs websockets")
    opened = Browser(tmp_path_factory.mktemp("chromium"))
    opened.send(
        "Emulation.setEmulatedMedia",
        features=[{"name": "prefers-reduced-motion", "value": "reduce"}],
    )
    yield opened
    opened.close()


@pytest.fixture
def pictures(tmp_path) -> Path:
    """Where screenshots go; CI keeps them."""
    return Path(os.environ.get("ROPEWALK_SCREENSHOTS") or tmp_path)
