"""Which texts of a page in the browser overlap or are cut off; pictures are read as text too, since
an SVG has its own.
"""

from typing import Any

#: every visible line of text of an element, as [text, left, top, right, bottom]; a picture is drawn
#: again as part of the page
BOXES = """
(async (root) => {
  const seen = [], add = (text, box) => {
    if (text.trim() && box.width > 1 && box.height > 1) seen.push([text.trim(), box.left, box.top, box.right, box.bottom]);
  };
  const shown = (element) => element.checkVisibility({opacityProperty: true, visibilityProperty: true});
  const read = (top) => {
    const nodes = document.createTreeWalker(top, NodeFilter.SHOW_TEXT);
    for (let node = nodes.nextNode(); node; node = nodes.nextNode()) {
      const parent = node.parentElement;
      if (!shown(parent) || parent.closest('script, style, title, desc, [aria-hidden=true]:not(svg *)')) continue;
      const range = document.createRange();
      range.selectNodeContents(node);
      for (const box of range.getClientRects()) add(node.data, box);
    }
  };
  read(root);
  for (const picture of root.querySelectorAll('img')) {
    const box = picture.getBoundingClientRect(), place = document.createElement('div');
    place.style = `position: fixed; left: ${box.left}px; top: ${box.top}px; width: ${box.width}px; height: ${box.height}px`;
    place.innerHTML = await (await fetch(picture.src)).text();
    place.firstChild.setAttribute('width', box.width);
    place.firstChild.setAttribute('height', box.height);
    document.body.append(place);
    read(place);
    place.remove();
  }
  return seen;
})(%s)
"""  # noqa: E501
#: every text of a chart whose box ends more than some pixels outside of the chart
CUT = """
[...document.querySelectorAll('[data-testid=stVegaLiteChart] svg')].flatMap((chart) => {
  const box = chart.getBoundingClientRect(), slack = %s + 0.6;
  const outside = (text) => {
    const own = text.getBoundingClientRect();
    return Math.max(box.top - own.top, own.bottom - box.bottom, box.left - own.left, own.right - box.right) > slack;
  };
  return [...chart.querySelectorAll('text')].filter(outside).map((text) => text.textContent).filter((text) => text.trim());
})
"""  # noqa: E501
#: line boxes are a little higher than their letters
SLACK = 3.0


def overlaps(
    browser: Any, root: str = "document.querySelector('[data-testid=stMain]')"
) -> list[tuple[str, str]]:
    """Return the pairs of different texts whose boxes intersect by more than SLACK in both
    directions.
    """
    boxes = browser.js(BOXES % root)
    assert len(boxes) > 10, boxes
    pairs = ((first, second) for place, first in enumerate(boxes) for second in boxes[place + 1 :])
    return [
        (first[0], second[0])
        for first, second in pairs
        if first[0] != second[0] and _shared(first, second) > SLACK
    ]


def cut(browser: Any) -> list[str]:
    """Return the texts that are partly outside of their chart, where they are not drawn."""
    return browser.js(CUT % SLACK)


def _shared(first: list[Any], second: list[Any]) -> float:
    """Return the smaller side of the common part of two boxes."""
    return min(
        min(first[end], second[end]) - max(first[start], second[start])
        for start, end in ((1, 3), (2, 4))
    )
