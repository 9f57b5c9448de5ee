"""Print how long each page of the built site is, and what a browser cuts off on it.

`make site && python tools/site_screens.py` opens every page of build/site in Chromium at two widths.
The exit status is 1 if something is cut off or a page is too long. Without Chromium nothing is
measured, and the status is 0.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from browser import CHROMIUM, Browser  # noqa: E402

WIDTHS = (390, 1280)
#: height of a screen in pixels, and the most screens that a page may be long
SCREEN, MOST = 900, 10.0
#: height of the page, and what is cut off: the page itself, and elements that are wider than their
#: box or stick out of the page without a scrollbar between
MEASURE = """
(() => {
  const scrolls = (each) => ['auto', 'scroll'].includes(getComputedStyle(each).overflowX);
  const inside = (each) => {
    for (let up = each; up && up !== document.body; up = up.parentElement) if (scrolls(up)) return true;
    return false;
  };
  const cut = document.documentElement.scrollWidth > innerWidth + 1
    ? [`page ${document.documentElement.scrollWidth}`] : [];
  const kinds = 'pre, table, img, svg, math, .sig, p, li, h1, h2, h3';
  for (const each of document.querySelectorAll(`article :is(${kinds})`)) {
    if (!each.checkVisibility() || inside(each)) continue;
    const box = each.getBoundingClientRect();
    const name = `${each.tagName.toLowerCase()} ${(each.innerText || each.src || '').slice(0, 40)}`;
    if (each.scrollWidth > each.clientWidth + 1 && each.clientWidth && each.tagName !== 'SVG') cut.push(name);
    else if (box.right > innerWidth + 1) cut.push(name);
  }
  return { height: document.documentElement.scrollHeight, cut };
})()
"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A server of files that prints nothing."""

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


def pages_of(site: Path) -> list[str]:
    """Return the names of all pages of a site, without the two indexes and the search."""
    names = [path.relative_to(site).with_suffix("").as_posix() for path in site.rglob("*.html")]
    return sorted(set(names) - {"genindex", "py-modindex", "search"})


def measure(site: Path, pages: list[str], profile: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """Return {(page, width): {"screens": ..., "cut": [...]}} as Chromium shows a site."""
    found = {}
    handler = functools.partial(Quiet, directory=str(site))
    browser = Browser(profile)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            for width in WIDTHS:
                browser.size(width, SCREEN)
                for page in pages:
                    address = f"http://127.0.0.1:{server.server_port}/{page}.html"
                    browser.open(address)
                    seen = browser.js(MEASURE)
                    found[page, width] = {"screens": seen["height"] / SCREEN, "cut": seen["cut"]}
        finally:
            browser.close()
            server.shutdown()
    return found


def main() -> int:
    """Print a row for each page, the longest first, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="*", help="names of pages, such as zh/start; default all")
    parser.add_argument("--site", type=Path, default=ROOT / "build" / "site")
    chosen = parser.parse_args()
    if CHROMIUM is None:
        print("chromium: not found; nothing measured")
        return 0
    if not (chosen.site / "index.html").exists():
        print(f"{chosen.site}: has no site; run make site")
        return 2
    with tempfile.TemporaryDirectory() as profile:
        found = measure(chosen.site, chosen.pages or pages_of(chosen.site), Path(profile))
    narrow, wide = WIDTHS
    names = sorted({page for page, _ in found}, key=lambda page: -found[page, wide]["screens"])
    print(f"{'page':44} {'screens':>8} {f'at {narrow}':>8}  cut")
    faults = 0
    for page in names:
        cut = [f"{width}: {each}" for width in WIDTHS for each in found[page, width]["cut"]]
        faults += bool(cut) or max(found[page, width]["screens"] for width in WIDTHS) > MOST
        screens = (f"{found[page, width]['screens']:8.1f}" for width in (wide, narrow))
        print(f"{page:44} {' '.join(screens)}  {'; '.join(cut).replace(chr(10), ' ')}")
    print(f"{len(names)} pages; {faults} too long or with something cut off")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
