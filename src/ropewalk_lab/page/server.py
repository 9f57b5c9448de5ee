"""The page on this machine: its files, the answers of Python, and a model that reads a text.

It listens on 127.0.0.1, and refuses requests with a host name other than that and localhost, or
with another origin. Besides its own files it reads only what the visitor names.
"""

from __future__ import annotations

import asyncio
import html
import json
import queue
import re
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from socketserver import BaseRequestHandler, TCPServer
from typing import Any

from ropewalk.errors import MissingExtra, RopeError, choice, integer, number
from ropewalk_lab.downloads import find_fetched
from ropewalk_lab.page import answers

HOME = "127.0.0.1"
#: other names that resolve to this machine are refused (DNS rebinding)
NAMES = [HOME, "localhost"]
STATIC = Path(__file__).with_name("static")
#: the endings of a report's file
REPORT_SUFFIXES = (".html", ".htm", ".md")
#: a random model, to try the page
TINY = "tiny"
#: the most bytes in the body of a request
MAX_BODY = 1 << 20
#: the form of an address of the static page
ADDRESS = re.compile(r"https?://[\w.:/~%-]{1,500}")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
#: a report is a document of its own, without scripts
REPORT_POLICY = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def check(
    port: int, report: Path | None = None, model: str | None = None, share: str | None = None
) -> None:
    """Raise an error if the server's packages are missing, the port is in use, the report is not an
    HTML or Markdown file, the model is not there, or `share` is not an address. The arguments are
    those of `serve`.
    """
    try:
        import starlette  # noqa: F401 - only to see whether it is installed
    except ImportError:
        raise MissingExtra("explore", "starlette", "explore") from None
    try:
        import uvicorn  # noqa: F401
    except ImportError:
        raise MissingExtra("explore", "uvicorn", "explore") from None
    integer("port", port, low=1, high=65_535)
    if report is not None and not (report.is_file() and report.suffix.lower() in REPORT_SUFFIXES):
        raise RopeError("report", "must be the path of a report, an .html or .md file", str(report))
    if model not in (None, TINY) and not find_fetched(model).exists():
        rule = "must be a .gguf file or a Hugging Face folder on this machine, or smollm2"
        raise RopeError("model", rule, model)
    if share is not None and not ADDRESS.fullmatch(share):
        raise RopeError("share", "must be an address that begins with https:// or http://", share)
    try:
        _Listener((HOME, port), BaseRequestHandler).server_close()
    except OSError as error:
        raise _port_in_use(port, error.strerror) from None


class _Listener(TCPServer):
    """A server that is opened only to see whether its port is free; a port that was closed a moment
    ago counts as free.
    """

    allow_reuse_address = True


def _port_in_use(port: int, reason: str | None) -> RopeError:
    """Return the error for a port that cannot be opened; `reason` is the system's message."""
    return RopeError("port", f"must be free on {HOME} ({reason}); choose another one", port)


def application(
    report: Path | None = None,
    model: str | None = None,
    share: str | None = None,
    lifespan: Any = None,
) -> Any:
    """Return the page as an ASGI application.

    report    the file that the page shows as a report
    model     the name or path of the model that the page proposes to load; None: the fetched one
    share     the address of the static page, which links to share begin with; None: that of this
              page
    lifespan  a context manager of Starlette that the server enters when it starts
    """
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.requests import Request
    from starlette.responses import (
        FileResponse,
        HTMLResponse,
        PlainTextResponse,
        Response,
        StreamingResponse,
    )
    from starlette.routing import Mount, Route
    from starlette.staticfiles import StaticFiles

    async def index(_: Request) -> Response:
        page = (STATIC / "index.html").read_text(encoding="utf-8")
        # the attribute tells the page's scripts that Python answers here
        mark = f'<html lang="en" data-local="{html.escape(share or "")}">'
        return HTMLResponse(page.replace('<html lang="en">', mark, 1))

    async def known(_: Request) -> Response:
        return _json(answers.known_models())

    async def about(_: Request) -> Response:
        """Answer what this server offers beside the static page."""
        from ropewalk_lab.page.reading import MAX_TOKENS, TEXTS, offered_methods

        return _json(
            {
                "model": model or _fetched(),
                "report": report is not None,
                "methods": list(offered_methods()),
                "texts": list(TEXTS),
                "max_tokens": MAX_TOKENS,
            }
        )

    async def ask(request: Request) -> Response:
        """Answer as `answers` does, in a thread, so that other requests need not wait."""
        body = await _body(request)
        if body is None:
            return PlainTextResponse("refused", 400)
        text = await asyncio.to_thread(answers.answer, body)
        return Response(text, media_type="application/json")

    async def read(request: Request) -> Response:
        body = await _body(request)
        if body is None:
            return PlainTextResponse("refused", 400)
        return StreamingResponse(_read(body), media_type="application/x-ndjson")

    async def shown_report(_: Request) -> Response:
        """Answer with the report; Markdown is shown as plain text."""
        if report is None:
            return PlainTextResponse("no report was given: ropewalk explore --report", 404)
        kind = "text/plain" if report.suffix.lower() == ".md" else "text/html"
        return FileResponse(
            report, media_type=kind, headers={"Content-Security-Policy": REPORT_POLICY}
        )

    routes = [
        Route("/", index),
        Route("/index.html", index),
        Route("/data/known.json", known),
        Route("/api/about", about),
        Route("/api/ask", ask, methods=["POST"]),
        Route("/api/read", read, methods=["POST"]),
        Route("/report", shown_report),
        Mount("/", StaticFiles(directory=STATIC)),
    ]
    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=NAMES, www_redirect=False)
    # around Starlette, whose answer 500 would not pass a middleware of its own list
    return _Headers(Starlette(routes=routes, middleware=[hosts], lifespan=lifespan))


class _Headers:
    """ASGI middleware: every answer has the policy and the headers; a request of another origin is
    refused.
    """

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request of ASGI: `scope` describes it, `receive` and `send` pass its messages."""
        if scope["type"] != "http":  # such as the start of the server
            await self.app(scope, receive, send)
            return

        async def with_headers(message: Any) -> None:
            """Send a message; the first one of an answer gets the policy and the headers."""
            if message["type"] == "http.response.start":
                names = {name for name, _ in message["headers"]}
                policy = {"Content-Security-Policy": POLICY} | HEADERS
                message["headers"] = [
                    *message["headers"],
                    # an answer that has one of them, such as the report's policy, keeps its own
                    *(
                        (name.lower().encode(), value.encode())
                        for name, value in policy.items()
                        if name.lower().encode() not in names
                    ),
                ]
            await send(message)

        given = dict(scope["headers"])
        origin, host = given.get(b"origin"), given.get(b"host", b"")
        # a browser names the origin of the page that sends a request; other programs name none
        if origin is not None and origin != b"http://" + host:
            from starlette.responses import PlainTextResponse

            await PlainTextResponse("refused", 403)(scope, receive, with_headers)
            return
        await self.app(scope, receive, with_headers)


def _json(value: Any) -> Any:
    """Return the response with a value as JSON."""
    from starlette.responses import Response

    return Response(json.dumps(value), media_type="application/json")


async def _body(request: Any) -> str | None:
    """Return the body of a request as text; None if it is too long, not UTF-8, or not declared as
    JSON. The form of another site's page cannot declare that.
    """
    if request.headers.get("content-type", "").split(";")[0] != "application/json":
        return None
    parts = bytearray()
    async for chunk in request.stream():
        parts += chunk
        if len(parts) > MAX_BODY:
            return None
    try:
        return parts.decode()
    except UnicodeDecodeError:
        return None


async def _read(body: str) -> AsyncIterator[str]:
    """Yield lines of JSON: the progress of `_readings`, then its results or an error. The model
    runs in a thread of its own.
    """
    lines: queue.Queue[dict[str, Any] | None] = queue.Queue()

    def run() -> None:
        """Put the lines into the queue; None is the end."""
        try:
            lines.put({"ok": _readings(body, lambda share: lines.put({"progress": share}))})
        except RopeError as error:
            lines.put({"error": {"field": error.field, "rule": error.rule}})
        except ValueError as error:
            lines.put({"error": {"field": "request", "rule": str(error)[:200]}})
        finally:
            lines.put(None)

    threading.Thread(target=run, daemon=True).start()
    while (line := await asyncio.to_thread(lines.get)) is not None:
        yield json.dumps(line, allow_nan=False) + "\n"


def _readings(body: str, progress: Any) -> dict[str, Any]:
    """Return the two readings that a request asks for, without and with a method, as plain data;
    `progress` is called with the share that is done, from 0 to 1.

    The maps are those of the asked layer and head, or of the `telling_head` if none is asked for.
    """
    from ropewalk_lab.fit.methods import NONE, methods
    from ropewalk_lab.page import reading

    asked = json.loads(body)
    if not isinstance(asked, dict):
        raise RopeError("request", "must be a JSON object", type(asked).__name__)
    name = asked.get("model")
    if not isinstance(name, str) or not name or len(name) > 4096:
        raise RopeError(
            "model", "must be a .gguf file or a Hugging Face folder on this machine", name
        )
    progress(0.0)
    model = reading.load(name)
    method = choice("method", asked.get("method"), reading.offered_methods())
    typed = asked.get("typed", "")
    if not isinstance(typed, str):
        raise RopeError("text", "must be a string", type(typed).__name__)
    if len(typed) > reading.MAX_TEXT:
        raise RopeError("text", f"must have at most {reading.MAX_TEXT} characters", len(typed))
    request = reading.ReadingRequest(
        method,
        number("factor", asked.get("factor", 4.0), low=1, high=1024)
        if methods()[method].factor
        else 1.0,
        choice("text", asked.get("text"), reading.TEXTS),
        typed,
        integer("tokens", asked.get("tokens", 256), low=1, high=reading.MAX_TOKENS),
        number("depth", asked.get("depth", 0.25), low=0, high=1),
        integer("gap", asked.get("gap", 0), low=0, high=1 << 24),
    )
    # the progress of one reading, as that of both: the first begins at 0, the second at 1/2
    half = lambda first: lambda done, total: progress((first + done / total) / 2)  # noqa: E731 - one line
    before = reading.read(model, replace(request, method=NONE, factor=1.0), half(0))
    after = reading.read(model, request, half(1))
    layer, head = reading.telling_head(before, after)
    if asked.get("layer") is not None:
        layer = integer("layer", asked["layer"], low=0, high=model.layers - 1)
        head = integer("head", asked.get("head"), low=0, high=model.heads - 1)
    return {
        "trained": model.trained,
        "layers": model.layers,
        "heads": model.heads,
        "layer": layer,
        "head": head,
        "readings": {
            which: {
                "probability": each.probability,
                "loss": float(each.losses.mean()),
                "last": int(each.positions[-1]),
                "losses": [round(float(loss), 4) for loss in each.losses],
                "map": [[round(float(cell), 5) for cell in row] for row in each.maps[layer, head]],
                "written": each.written,
            }
            for which, each in (("before", before), ("after", after))
        },
    }


def _fetched() -> str:
    """Return the name of the model that `ropewalk lab fetch` has downloaded, or an empty text."""
    try:
        find_fetched("smollm2")
    except RopeError:
        return ""
    return "smollm2"


def serve(
    port: int,
    browser: bool = True,
    report: Path | None = None,
    model: str | None = None,
    share: str | None = None,
) -> None:
    """Serve the page on `port` of this machine until interrupted; with `browser`, open it in one.
    `report`, `model` and `share` are those of `application`.
    """
    check(port, report, model, share)
    import uvicorn

    address = f"http://{HOME}:{port}"
    app = application(report, model, share, _opening(address) if browser else None)
    config = uvicorn.Config(
        app, host=HOME, port=port, log_level="error", server_header=False, ws="none"
    )
    try:
        uvicorn.Server(config).run()
    except SystemExit as stop:
        # the server exits with an error if another program took the port after `check`
        if stop.code:
            raise _port_in_use(port, "Address already in use") from None


def _opening(address: str) -> Any:
    """Return a lifespan (Starlette's context manager around the run of a server) that opens the
    page in a browser when the server has started.
    """
    import webbrowser

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        # the server listens only after this function has yielded
        asyncio.get_running_loop().call_later(0.5, webbrowser.open, address)
        yield

    return lifespan
