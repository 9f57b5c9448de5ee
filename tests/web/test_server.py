"""How the page is served: to this machine alone, under its own name, with a policy, and with a
refusal in one line.
"""

import asyncio
import json
import re
import socket
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from ropewalk import RopeError, cli
from ropewalk_lab.page import server

pytest.importorskip("starlette", reason="needs starlette: pip install 'ropewalk[explore]'")


def answer(address, path="/", data=None, **headers):
    """Return the status, the headers and the text of an answer."""
    request = urllib.request.Request(address + path, data=data, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as found:
            return found.status, found.headers, found.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read().decode()


def test_every_answer_has_the_content_security_policy_and_nosniff(local):
    for path in (
        "/",
        "/js/main.js",
        "/style.css",
        "/data/known.json",
        "/api/about",
        "/nothing",
        "/report",
    ):
        status, headers, _ = answer(local, path)
        assert status == (404 if path == "/nothing" else 200)
        policy = headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "default-src 'none'" in policy
        assert "unsafe-eval" not in policy
        assert ("unsafe-inline" in policy) == (path == "/report")
        assert headers["Access-Control-Allow-Origin"] is None
    assert "sandbox" in answer(local, "/report")[1]["Content-Security-Policy"]


def test_requests_with_another_host_or_origin_are_refused(local):
    own = local.removeprefix("http://")
    port = own.partition(":")[2]
    assert answer(local, Host=own)[0] == answer(local, Host=f"localhost:{port}")[0] == 200
    # a name that resolves to this machine, as in a DNS rebinding attack
    for name in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "[::1]", ""):
        assert answer(local, Host=name)[0] == 400
    assert answer(local, Origin=local)[0] == 200
    for origin in ("http://evil.example", "null", f"https://{own}", f"{local}.evil.example"):
        status, headers, _ = answer(local, Origin=origin)
        assert status == 403
        assert "default-src 'none'" in headers["Content-Security-Policy"]


def test_an_answer_after_an_unexpected_error_has_the_policy(monkeypatch):
    def fail() -> None:
        raise RuntimeError("unexpected")

    async def receive() -> dict[str, str]:
        return {"type": "http.request"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    monkeypatch.setattr(server.answers, "known_models", fail)
    sent: list[dict[str, Any]] = []
    headers = [(b"host", b"localhost")]
    scope = {"type": "http", "method": "GET", "path": "/data/known.json", "headers": headers}
    with pytest.raises(RuntimeError, match="unexpected"):
        asyncio.run(server.application()(scope, receive, send))
    assert sent[0]["status"] == 500
    assert b"default-src 'none'" in dict(sent[0]["headers"])[b"content-security-policy"]


def test_requests_that_are_not_json_are_refused(local):
    body = json.dumps({"ask": "doctor", "text": "{}"}).encode()
    json_type = {"Content-Type": "application/json"}
    assert "ok" in json.loads(answer(local, "/api/ask", body, **json_type)[2])
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        for path in ("/api/ask", "/api/read"):
            assert answer(local, path, body, **{"Content-Type": kind})[0] == 400
    assert answer(local, "/api/ask", b"x" * (server.MAX_BODY + 1), **json_type)[0] == 400
    assert answer(local, "/api/ask", b"\xff\xfe", **json_type)[0] == 400
    assert answer(local, "/api/ask")[0] in (404, 405)


@pytest.mark.parametrize(
    "path",
    [
        "/../server.py",
        "/..%2fserver.py",
        "/%2e%2e/server.py",
        "/js/../../answers.py",
        "//etc/passwd",
        "/static/../../answers.py",
    ],
)
def test_files_beside_the_page_are_not_served(local, path):
    host, port = local.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as line:
        line.sendall(
            f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode()
        )
        text = b"".join(iter(lambda: line.recv(65536), b""))
    assert b" 404 " in text.split(b"\r\n")[0]


def reads(local, **asked):
    request = {
        "model": "tiny",
        "method": "yarn",
        "text": "filler",
        "tokens": 300,
        "gap": 100,
    } | asked
    body = json.dumps(request).encode()
    status, _, text = answer(local, "/api/read", body, **{"Content-Type": "application/json"})
    assert status == 200
    return [json.loads(line) for line in text.splitlines()]


def test_a_reading_reports_progress_and_gives_the_packages_results(local):
    from ropewalk_lab.page import reading

    *progress, last = reads(local, factor=4.0)
    shares = [line["progress"] for line in progress]
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert len(shares) > 10
    model = reading.load("tiny")
    for which, method, factor in (("before", "none", 1.0), ("after", "yarn", 4.0)):
        found = reading.read(model, reading.ReadingRequest(method, factor, tokens=300, gap=100))
        given = last["ok"]["readings"][which]
        assert given["losses"] == [round(float(loss), 4) for loss in found.losses]
        assert given["written"] == found.written
        assert given["last"] == found.positions[-1]
    assert (last["ok"]["layer"], last["ok"]["head"]) == reading.telling_head(
        *(
            reading.read(model, reading.ReadingRequest(*each, tokens=300, gap=100))
            for each in (("none", 1.0), ("yarn", 4.0))
        )
    )
    assert reads(local, layer=0, head=1)[-1]["ok"]["head"] == 1


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"model": ""}, "model"),
        ({"model": "/nowhere.gguf"}, "model"),
        ({"model": 3}, "model"),
        ({"method": "self_extend"}, "method"),
        ({"method": None}, "method"),
        ({"factor": "4"}, "factor"),
        ({"factor": -1}, "factor"),
        ({"text": "other"}, "text"),
        ({"tokens": 1 << 20}, "tokens"),
        ({"depth": 2}, "depth"),
        ({"gap": -1}, "gap"),
        ({"layer": 9, "head": 0}, "layer"),
        ({"text": "own", "typed": "x" * (1 << 17)}, "text"),
        ({"text": "own", "typed": 3}, "text"),
    ],
)
def test_a_bad_request_for_a_reading_is_refused_with_the_name_of_its_field(local, asked, field):
    *_, last = reads(local, **asked)
    assert last["error"]["field"] == field


def refusal(capsys, *args) -> str:
    with pytest.raises(SystemExit) as stop:
        cli.main(["explore", "--no-browser", *args])
    assert stop.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""  # no address of a page that is not served
    assert err.startswith("ropewalk: ")
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize("port", [0, 65_536, -1])
def test_a_number_that_is_no_port_is_refused(capsys, port):
    assert "--port: must be an integer from 1 to 65535" in refusal(capsys, "--port", str(port))


def test_a_port_that_is_taken_is_refused(capsys, local):
    assert "--port: must be free" in refusal(capsys, "--port", local.rpartition(":")[2])


@pytest.mark.parametrize("name", ["none.html", "", "report.exe"])
def test_a_path_that_is_no_report_is_refused(capsys, tmp_path, name):
    (tmp_path / "report.exe").write_bytes(b"MZ")
    path = str(tmp_path / name)
    assert "--report: must be the path of a report" in refusal(capsys, "--report", path)


@pytest.mark.parametrize(
    "share", ["page", "javascript:alert(1)", 'http://x"><script>', "file:///x"]
)
def test_a_share_option_that_is_no_address_is_refused(capsys, share):
    assert "--share: must be an address" in refusal(capsys, "--share", share)


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_without_the_server_the_extra_is_named(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(RopeError, match=re.escape("pip install 'ropewalk[explore]'")):
        server.check(8600)


def test_the_page_and_the_studies_name_the_tiny_model_alike():
    from ropewalk_lab.studies.real import TINY

    assert server.TINY == TINY


def test_the_page_and_its_files_are_in_the_package():
    import tomllib

    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    patterns = tomllib.loads(text)["tool"]["setuptools"]["package-data"]["ropewalk_lab"]
    root = server.STATIC.parents[1]
    shipped = {path for pattern in patterns for path in root.glob(pattern) if path.is_file()}
    assert {path for path in server.STATIC.rglob("*") if path.is_file()} <= shipped
