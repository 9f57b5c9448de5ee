"""How large the page is, how soon it shows dials and answers, and what hostile links do to it.

    make web
    python benchmarks/web.py                    # writes results/web.jsonl
    python benchmarks/web.py --hashes 40000     # also sends hostile links

Times are those of the built page in a headless Chromium, from the start of the navigation; the server
is a plain one on this machine. Every round has a browser with an empty cache.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import http.server
import json
import os
import statistics
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from browser import Browser  # noqa: E402  # pyright: ignore[reportMissingImports]
from hostile_hashes import hashes  # noqa: E402  # pyright: ignore[reportMissingImports]
from ropewalk_lab.machine import cores, device_name  # noqa: E402

BUILT = ROOT / "build" / "web"
OUT = ROOT / "results" / "web.jsonl"
#: record when the first dials are drawn, and when each answer has come
WATCH = """
window.seen = {answers: []};
const look = () => {
  const canvas = document.querySelector("canvas");
  if (!seen.dials && canvas?.style.height) seen.dials = performance.now();
  const count = Number(document.documentElement?.dataset.answered ?? 0);
  while (seen.answers.length < count) seen.answers.push(performance.now());
  requestAnimationFrame(look);
};
look();
"""
#: change the config as if it was typed, and return the time until the answer is shown
TYPE = """(async (theta) => {
  const area = document.querySelector("textarea");
  const before = Number(document.documentElement.dataset.answered);
  area.value = area.value.replace(/"rope_theta": [0-9.]+/, `"rope_theta": ${theta}.0`);
  const begin = performance.now();
  area.dispatchEvent(new Event("input"));
  while (Number(document.documentElement.dataset.answered) === before) {
    await new Promise((done) => setTimeout(done, 1));
  }
  return performance.now() - begin;
})"""
#: send hashes to the page, and return how many scripts have run plus how many foreign elements
#: there are
SEND = """(async (hashes, foreign) => {
  for (const hash of hashes) {
    try { history.replaceState(null, "", hash); } catch { continue; }
    dispatchEvent(new HashChangeEvent("hashchange"));
  }
  await new Promise((done) => setTimeout(done, 20));
  return window.hit + document.querySelectorAll(foreign).length;
})"""
#: elements that the page itself never has
FOREIGN = (
    "main script, main iframe, main object, main embed, main img, [onerror], [onload], [onclick], "
    "a[href^='javascript:' i]"
)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def served() -> Iterator[str]:
    """Context manager: the address of the built page."""
    handler = functools.partial(Quiet, directory=str(BUILT))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@contextmanager
def browser() -> Iterator[Browser]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        opened = Browser(Path(folder))
        try:
            yield opened
        finally:
            opened.close()


def loaded(address: str) -> dict[str, Any]:
    """Return the times of one visit with an empty cache, in seconds."""
    with browser() as page:
        page.send("Page.enable")
        page.send("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
        page.send("Page.navigate", url=f"{address}/#doctor?lang=en&engine=vllm&length=131072")
        page.wait("window.seen && seen.answers.length > 0", "an answer", 120)
        seen = page.js("seen")
        later = [page.js(f"{TYPE}({10_000 + 1000 * i})") for i in range(10)]
    return {
        "dials": seen["dials"] / 1000,
        "first answer": seen["answers"][0] / 1000,
        "next answer": statistics.median(later) / 1000,
        "slowest next answer": max(later) / 1000,
    }


def hostile(address: str, count: int) -> dict[str, Any]:
    """Return how many scripts ran, how many elements of FOREIGN appeared (counted with them) and
    how many requests went to other hosts when `count` hostile links were sent to the page without
    its content security policy.
    """
    with browser() as page:
        page.send("Page.setBypassCSP", enabled=True)
        page.watch()
        page.open(f"{address}/#doctor", "document.querySelector('main h1') !== null")
        page.js(
            "window.hit = 0; window.alert = window.confirm = window.prompt = () => { hit++; }; 0"
        )
        ran = 0
        for start in range(0, count, 200):
            some = json.dumps(hashes(start, min(200, count - start)))
            ran += page.js(f"{SEND}({some}, {json.dumps(FOREIGN)})")
            if start % 4000 == 0:
                print(f"{start:,} hashes, {ran} scripts", file=sys.stderr, flush=True)
        sent = [each for each in page.requests() if each.startswith("http")]
        other = [each for each in sent if not each.startswith(f"{address}/")]
    return {"hashes": count, "scripts run": ran, "requests to other hosts": len(other)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hashes", type=int, default=0)
    arguments = parser.parse_args()
    about = {
        "date": date.today().isoformat(),
        "machine": device_name(),
        "cores": cores(),
        # the mean number of programs that wanted a core in the last minute; if there were more than
        # cores, some waited
        "load": round(os.getloadavg()[0], 1),
    }
    sizes = [
        len(gzip.compress(each.read_bytes(), 9)) for each in BUILT.rglob("*") if each.is_file()
    ]
    rows: list[dict[str, Any]] = [
        {"what": "gzipped bytes", "files": len(sizes), "value": sum(sizes)}
    ]
    with served() as address:
        rounds = [loaded(address) for _ in range(arguments.rounds)]
        for name in rounds[0]:
            values = [round(each[name], 4) for each in rounds]
            rows.append(
                {"what": name, "unit": "s", "value": statistics.median(values), "values": values}
            )
        if arguments.hashes:
            rows.append({"what": "hostile links", **hostile(address, arguments.hashes)})
    text = "".join(json.dumps({**row, **about}) + "\n" for row in rows)
    OUT.write_text(text, encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
