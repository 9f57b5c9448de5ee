"""Find the method with which a model reads texts longer than its trained length: `fit` measures
methods on text and on pass keys, trains nothing, and recommends one.

`session` is the public API. It runs these modules in order: `open_model` opens the model, `plan`
takes the samples (`text`, `passkeys`), `measure` reads them with each method (`methods`, `reader`)
and stores rows in a `ledger`, `decide` compares the rows, and `summary` puts them into a table and
words.
"""

from ropewalk_lab.fit.measure import Step
from ropewalk_lab.fit.methods import METHODS, Method
from ropewalk_lab.fit.session import Fit, fit

__all__ = ["METHODS", "Fit", "Method", "Step", "fit"]
