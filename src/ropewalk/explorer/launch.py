"""Start the page's server: reachable from this machine only, no telemetry, no file watching, uploads up to 1 MB."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ropewalk.errors import RopeError, integer

HOME = "127.0.0.1"
PAGE = Path(__file__).with_name("page.py")


def options(port: int, browser: bool) -> dict[str, Any]:
    """Return streamlit's settings by name."""
    return {
        "server.address": HOME,
        "server.port": integer("port", port, low=1, high=65_535),
        "server.headless": not browser,
        # reject other host names that resolve to this machine (DNS rebinding)
        "server.allowedHosts": [HOME, "localhost"],
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


def launch(port: int, browser: bool = True, report: Path | None = None) -> None:
    """Serve the page until interrupted."""
    try:
        from streamlit.web import bootstrap
    except ImportError:
        raise RopeError("explore", "needs streamlit; run: pip install 'ropewalk[explorer]'", None) from None
    from ropewalk.explorer.charts import warm_up

    if report is not None:
        if not report.is_file():
            raise RopeError("report", "must be the path of a report, an .html or .md file", str(report))
        os.environ["ROPEWALK_REPORT"] = str(report.resolve())
    flags = options(port, browser)
    warm_up()
    bootstrap.load_config_options(flags)
    try:
        bootstrap.run(str(PAGE), False, [], flags)
    except SystemExit as stop:
        if stop.code:
            raise RopeError("port", "must not be in use; choose another one with --port", port) from None
