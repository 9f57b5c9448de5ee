"""Hashes of links that try to run a script, to overflow, or to confuse the page's code that reads
its state from the hash.
"""

from __future__ import annotations

import base64
import json
import random
from urllib.parse import quote

SCRIPTS = (
    "<script>hit++</script>",
    "<img src=x onerror=hit++>",
    "<svg onload=hit++>",
    "javascript:hit++",
    '"><img src=x onerror=hit++>',
    "'-hit++-'",
    "</textarea><script>hit++</script>",
    "<iframe srcdoc='<script>parent.hit++</script>'></iframe>",
    "${hit++}",
    "{{hit++}}",
    "<a href=javascript:hit++>x</a>",
    "<math><mtext><img src=x onerror=hit++></mtext></math>",
    "<details open ontoggle=hit++>",
    "\u202e<b onmouseover=hit++>",
    "<object data=http://evil.example/>",
    "<link rel=stylesheet href=http://evil.example/>",
    "//evil.example/x.js",
    "data:text/html,<script>hit++</script>",
)
NAMES = (
    "lang",
    "model",
    "config",
    "engine",
    "length",
    "step",
    "trained",
    "served",
    "scaling",
    "theta",
    "dim",
    "pair",
    "distance",
    "shift",
    "case",
    "family",
    "kind",
    "stack",
    "version",
    "find",
    "all",
    "cell",
    "study",
    "metric",
    "methods",
    "__proto__",
    "constructor",
    "toString",
    "view",
    "hasOwnProperty",
)
VIEWS = (
    "doctor",
    "story",
    "engines",
    "methods",
    "model",
    "",
    "__proto__",
    "constructor",
    "javascript:hit++",
    "%",
    "../",
    "doctor/",
)
ODD = (
    "",
    "0",
    "-1",
    "1e999",
    "NaN",
    "Infinity",
    "99999999999999999999",
    "1.5",
    "0x10",
    "%",
    "%zz",
    "%00",
    "%E0%A4%A",
    "null",
    "undefined",
    "true",
    "[]",
    "{}",
    "\u0000",
    "\ud7ff",
    "\uffff",
    "AAAA",
    "____",
    "====",
    "~~~~",
    "&&&&",
    "x" * 5000,
)


def _encoded(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode("utf-8", "surrogatepass")).decode().rstrip("=")


def _config(draw: random.Random) -> str:
    """Return a config with scripts in its keys and values."""
    payload = draw.choice(SCRIPTS)
    config = {
        "model_type": draw.choice([payload, "llama", None, 3, ["llama"]]),
        "head_dim": draw.choice([64, 128, -1, 1e308, payload, None]),
        "max_position_embeddings": draw.choice([4096, payload, 0, 1 << 60]),
        "rope_theta": draw.choice([1e4, payload, 0, -1]),
        "rope_scaling": draw.choice(
            [
                None,
                payload,
                {"rope_type": payload, "factor": payload},
                {payload: payload},
                {"rope_type": "yarn", "factor": draw.choice([4.0, payload])},
            ]
        ),
        payload: payload,
    }
    text = json.dumps(config)
    return draw.choice(
        [text, text[: draw.randrange(len(text))], payload, "[" * 2000, '{"gguf": ' + text + "}"]
    )


def _value(draw: random.Random, name: str) -> str:
    if name == "config" and draw.random() < 0.8:
        return _encoded(_config(draw))
    text = draw.choice([*SCRIPTS, *ODD])
    return draw.choice([text, quote(text), quote(quote(text)), _encoded(text), f"yarn{text}"])


def hashes(start: int, count: int) -> list[str]:
    """Return the hashes with the numbers start ... start + count - 1; a number always gives the same
    hash.
    """
    found = []
    for index in range(start, start + count):
        draw = random.Random(index)
        names = draw.choices(NAMES, k=draw.randint(1, 6))
        parts = "&".join(f"{name}={_value(draw, name)}" for name in names)
        view = draw.choice(VIEWS)
        found.append(
            draw.choice(
                [
                    f"#{view}?{parts}",
                    f"#{view}?{parts}",
                    f"#{parts}",
                    f"#{draw.choice(SCRIPTS)}",
                    f"#{view}?{parts}#{draw.choice(SCRIPTS)}",
                ]
            )
        )
    return found
