"""How the page is served: to this machine alone, under its own name, quietly, and with a refusal in
one line.
"""

import importlib
import os
import re
import socket
import sys
import urllib.error
import urllib.request

import pytest

from ropewalk import RopeError, cli
from ropewalk_lab.explorer import launch

pytest.importorskip("streamlit", reason="needs streamlit: pip install 'ropewalk[explorer]'")


def refusal(capsys, *args) -> str:
    with pytest.raises(SystemExit) as stop:
        cli.main(["explore", "--no-browser", *args])
    assert stop.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""  # no address of a page that is not served
    assert err.startswith("ropewalk: ")
    assert err.count("\n") == 1
    return err


def test_the_settings_are_known_to_streamlit_and_closed():
    config = importlib.import_module("streamlit.config")
    options = launch.options(8600, browser=False)
    assert set(options) <= set(config.get_config_options())
    assert options["server.address"] == "127.0.0.1"
    assert options["server.maxUploadSize"] == 1
    assert options["browser.gatherUsageStats"] is False
    assert options["server.enableXsrfProtection"] is True
    assert options["server.headless"] is True
    assert launch.options(8600, browser=True)["server.headless"] is False


@pytest.mark.parametrize("port", [0, 65_536, -1])
def test_a_port_that_is_none_is_refused(capsys, port):
    assert "--port: must be an integer from 1 to 65535" in refusal(capsys, "--port", str(port))


@pytest.mark.parametrize("name", ["none.html", "", "report.exe"])
def test_a_report_that_is_none_is_refused(capsys, tmp_path, name):
    (tmp_path / "report.exe").write_bytes(b"MZ")
    assert "--report: must be the path of a report" in refusal(
        capsys, "--report", str(tmp_path / name)
    )


def test_without_streamlit_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "streamlit", None)
    with pytest.raises(RopeError, match=re.escape("pip install 'ropewalk[explorer]'")):
        launch.check(8600)


def test_a_second_page_has_no_report_or_model_of_the_first(monkeypatch, tmp_path):
    seen = []
    names = ("ROPEWALK_REPORT", "ROPEWALK_MODEL", "ROPEWALK_LOCAL")
    for name in names:
        monkeypatch.setenv(name, "")  # restored after the test

    class App:
        """Stands for streamlit's server, which reads the environment."""

        def __init__(self, *_, **__):
            pass

        def run(self, config):
            seen.append([os.environ.get(name) for name in names])

    monkeypatch.setattr("streamlit.App", App)
    monkeypatch.setattr("ropewalk_lab.explorer.charts.warm_up", lambda: None)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    report = tmp_path / "report.html"
    report.write_text("a report")
    launch.launch(port, browser=False, report=report, model="tiny")
    launch.launch(port, browser=False)
    assert seen == [[str(report), "tiny", "1"], [None, None, "1"]]


def shake_hands(address: str, **headers: str) -> int:
    """The status of a request for the page's socket under given headers."""
    asked = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        **headers,
    }
    host, port = address.removeprefix("http://").split(":")
    lines = [
        "GET /_stcore/stream HTTP/1.1",
        *(f"{name.replace('_', '-')}: {value}" for name, value in asked.items()),
        "",
        "",
    ]
    with socket.create_connection((host, int(port)), timeout=20) as line:
        line.sendall("\r\n".join(lines).encode())
        return int(line.recv(100).split()[1])


def test_the_page_answers_this_machine_and_no_other_name(server):
    own = server.removeprefix("http://")
    assert shake_hands(server, Host=own) == 101
    assert shake_hands(server, Host=own, Origin=server) == 101
    # a name that resolves to this machine, as in a DNS rebinding attack
    for name in (
        "evil.example",
        f"evil.example:{own.partition(':')[2]}",
        "127.0.0.1.evil.example",
        "[::1]",
    ):
        assert shake_hands(server, Host=name) == 400
        assert shake_hands(server, Host=name, Origin=f"http://{name}") == 400
    assert shake_hands(server, Host=own, Origin="http://evil.example") == 403


@pytest.mark.parametrize(
    "path",
    ["/", "/_stcore/health", "/_stcore/host-config", "/_stcore/upload_file/a/b", "/media/a.json"],
)
def test_no_path_is_served_under_another_name(server, path):
    assert answer(server + path, Host="evil.example") == b"refused"
    assert answer(server + path, Host="localhost") == answer(server + path)


def test_a_port_in_use_is_told_in_one_line(capsys, server):
    assert (
        "--port: must be free on 127.0.0.1 (Address already in use); choose another one"
        in refusal(capsys, "--port", server.rpartition(":")[2])
    )


def answer(address: str, **headers: str) -> bytes:
    try:
        with urllib.request.urlopen(
            urllib.request.Request(address, headers=headers), timeout=20
        ) as found:
            return found.read()
    except urllib.error.HTTPError as refused:
        return b"refused" if refused.code in (400, 403, 404) else b"?"


@pytest.mark.parametrize(
    "path", ["/app/static/page.py", "/..%2f..%2fetc/passwd", "/media/../../etc/passwd"]
)
def test_files_of_the_machine_are_not_served(server, path):
    # any path that is none is answered with the page itself, as the browser's part decides what it
    # means
    assert answer(server + path) in (b"refused", answer(server + "/"))
