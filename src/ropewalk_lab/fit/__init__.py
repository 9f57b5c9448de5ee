"""Find the method that lets a loaded model read further: `fit` measures all of them on a text and
recommends one.

`session` is the public API; `reader` computes losses, `text` and `passkeys` make the samples,
`measure` stores a row for each, `decide` compares the rows, `summary` puts them into a table and
words, `methods` is the list of methods.
"""

from ropewalk_lab.fit.methods import METHODS, Method
from ropewalk_lab.fit.session import Fit, fit

__all__ = ["METHODS", "Fit", "Method", "fit"]
