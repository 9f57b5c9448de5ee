"""Start the page's server: reachable from this machine only, no telemetry, no file watching,
uploads up to 1 MB.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from socketserver import BaseRequestHandler, TCPServer
from typing import Any

from ropewalk.errors import MissingExtra, RopeError, integer
from ropewalk_lab.downloads import find_fetched
from ropewalk_lab.studies.real import TINY

HOME = "127.0.0.1"
#: other names that resolve to this machine are refused (DNS rebinding), for the page as for its
#: socket
NAMES = [HOME, "localhost"]
PAGE = Path(__file__).with_name("page.py")
REPORT_SUFFIXES = (".html", ".htm", ".md")


def options(port: int, browser: bool) -> dict[str, Any]:
    """Return streamlit's settings by name: reachable from this machine only, no telemetry, uploads
    of at most 1 MB.
    """
    return {
        "server.address": HOME,
        "server.port": integer("port", port, low=1, high=65_535),
        "server.headless": not browser,
        "server.allowedHosts": NAMES,
        "server.enableCORS": True,
        "server.enableXsrfProtection": True,
        "server.enableStaticServing": False,
        "server.enableAgentApi": False,
        "server.maxUploadSize": 1,
        "server.fileWatcherType": "none",
        "server.showEmailPrompt": False,
        "browser.serverAddress": HOME,
        "browser.gatherUsageStats": False,
        "client.toolbarMode": "minimal",
        "client.showErrorDetails": "none",
        "logger.hideWelcomeMessage": True,
        "logger.level": "error",
    }


def check(port: int, report: Path | None = None, model: str | None = None) -> None:
    """Raise an error if the explorer cannot start: streamlit is not installed, `port` is no port or
    in use, `report` is not an .html or .md file, or `model` is neither None, TINY, nor a path or a
    fetched model on this machine.
    """
    try:
        import streamlit  # noqa: F401 - only to see whether it is installed
    except ImportError:
        raise MissingExtra("explore", "streamlit", "explorer") from None
    integer("port", port, low=1, high=65_535)
    if report is not None and not (report.is_file() and report.suffix.lower() in REPORT_SUFFIXES):
        raise RopeError("report", "must be the path of a report, an .html or .md file", str(report))
    if model not in (None, TINY) and not find_fetched(model).exists():
        raise RopeError(
            "model",
            "must be a .gguf file or a Hugging Face folder on this machine, or smollm2",
            model,
        )
    try:
        _Listener((HOME, port), BaseRequestHandler).server_close()
    except OSError as error:
        raise _port_in_use(port, error.strerror) from None


class _Listener(TCPServer):
    """A server that is opened only to see whether its port is free; a port that was closed a moment
    ago counts as free.
    """

    allow_reuse_address = True


def launch(
    port: int, browser: bool = True, report: Path | None = None, model: str | None = None
) -> None:
    """Serve the page on `port` of this machine until interrupted; `report` and `model`, a name or
    path, are shown in it.
    """
    check(port, report, model)
    import streamlit
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    from ropewalk_lab.explorer.charts import warm_up

    # streamlit runs the page as a script, which has no arguments, so it reads them from the
    # environment
    arguments = {
        "ROPEWALK_REPORT": None if report is None else str(report.resolve()),
        "ROPEWALK_MODEL": model,
    }
    for name, value in arguments.items():
        os.environ.pop(name, None)  # of an earlier page
        if value is not None:
            os.environ[name] = value
    os.environ["ROPEWALK_LOCAL"] = (
        "1"  # a page on the user's own machine may read a path that is typed into it
    )
    warm_up()
    # refuse requests for other host names: a website could make its own name resolve to this
    # machine
    known_hosts = Middleware(TrustedHostMiddleware, allowed_hosts=NAMES, www_redirect=False)
    app = streamlit.App(
        PAGE,
        middleware=[known_hosts],
        lifespan=_opening(f"http://{HOME}:{port}") if browser else None,
    )
    try:
        app.run(config=options(port, browser))
    except SystemExit as stop:
        # the server exits with an error if another program took the port after `check`
        if stop.code:
            raise _port_in_use(port, "Address already in use") from None


def _port_in_use(port: int, reason: str | None) -> RopeError:
    """Return the error about a port that cannot be used; `reason` is that of the system."""
    return RopeError("port", f"must be free on {HOME} ({reason}); choose another one", port)


def _opening(address: str) -> Any:
    """Return a lifespan that opens the page in a browser when the server has started."""
    import asyncio
    import webbrowser

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        # the server listens only after this function has yielded, so the browser opens a little
        # later
        asyncio.get_running_loop().call_later(0.5, webbrowser.open, address)
        yield

    return lifespan
