"""Links with hostile hashes: no script runs, nothing is fetched from another host, and the page goes
on. `benchmarks/web.py` sends 40,000.
"""

import json

import pytest

from hostile_hashes import hashes

COUNT = 200
SEND = """(async (hashes, foreign) => {
  window.hit = 0; window.alert = window.confirm = window.prompt = () => { window.hit += 1; };
  for (const hash of hashes) {
    try { history.replaceState(null, "", hash); } catch { continue; }
    dispatchEvent(new HashChangeEvent("hashchange"));
    if (Math.random() < 0.02) await new Promise((done) => setTimeout(done, 5));
  }
  await new Promise((done) => setTimeout(done, 200));
  return [window.hit, document.querySelectorAll(foreign).length];
})"""
#: elements that the page itself never has
FOREIGN = (
    "main script, main iframe, main object, main embed, main img, [onerror], [onload], [onclick], "
    "a[href^='javascript:' i]"
)


@pytest.mark.parametrize("guarded", [True, False], ids=["with the policy", "without the policy"])
def test_no_script_of_a_link_runs(browser, local, guarded):
    """The content of a link is shown as text, so no script runs even without the content security
    policy.
    """
    browser.send("Page.setBypassCSP", enabled=not guarded)
    try:
        browser.watch()
        browser.open(f"{local}/#doctor", "document.querySelector('main h1') !== null")
        # the detector works: without the policy, markup that is parsed does run
        ran = browser.js(
            "(async () => { window.hit = 0; const box = document.createElement('div'); "
            "document.body.append(box); box.innerHTML = '<img src=x onerror=hit++>'; await new "
            "Promise((done) => setTimeout(done, 400)); box.remove(); return window.hit; })()"
        )
        assert ran == (0 if guarded else 1)
        browser.events.clear()
        for start in range(0, COUNT, 100):
            found = browser.js(f"{SEND}({json.dumps(hashes(start, 100))}, {json.dumps(FOREIGN)})")
            assert found == [0, 0]
        sent = [each for each in browser.requests() if not each.startswith(("about:", "blob:"))]
        assert [each for each in sent if not each.startswith(f"{local}/")] == []
        assert [
            each for each in browser.errors() if "TypeError" in each or "RangeError" in each
        ] == []
        browser.js("location.hash = '#methods?lang=en'")
        browser.wait("document.querySelector('svg.chart') !== null", "the page to go on")
    finally:
        browser.send("Page.setBypassCSP", enabled=False)
