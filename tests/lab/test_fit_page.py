"""The picture of a fit: losses with their standard errors, and shares of pass keys, worked out by
hand.
"""

import statistics

import pytest

from ropewalk_lab.fit import Fit
from ropewalk_lab.fit.decide import Decision, MethodChoice
from ropewalk_lab.fit_page import draw_fit

CHOSEN = MethodChoice("yarn", "it is", (), ())
FACTS = {"methods": ["none", "yarn"], "bands": [(0, 512), (512, 1024), (1024, 4096)], "to": 4096}
#: method -> the loss of each band, by window
LOSSES = {
    "none": [[3.0, 2.8, 6.0], [3.4, 2.9, 6.6], [3.2, 3.3, 7.5], [3.1, 2.6, 6.1]],
    "yarn": [[3.1, 2.9, 2.5], [3.5, 3.0, 2.9], [3.3, 3.4, 2.2], [3.2, 2.7, 2.6]],
}
#: method -> length in tokens -> which pass keys were found
KEYS = {"none": {972: [1, 1, 0, 1], 3891: [0, 0, 0, 0]}, "yarn": {972: [1, 1], 3891: [1, 0]}}


def drawn(losses, keys):
    rows = [
        {"metric": "text", "method": name, "window": window, "length": 4096, "bands": bands}
        for name, windows in losses.items()
        for window, bands in enumerate(windows)
    ]
    # a text of the trained length has no bands
    rows += [{"metric": "text", "method": name, "length": 1024, "loss": 9.0} for name in losses]
    rows += [
        {"metric": "passkey", "method": name, "length": length, "depth": depth, "found": each}
        for name, by_length in keys.items()
        for length, found in by_length.items()
        for depth, each in enumerate(found)
    ]
    return draw_fit(Fit(rows, FACTS, Decision(CHOSEN, CHOSEN, CHOSEN), None, {}))


def bars(axes):
    """Return (mean, half the height of its error bar) of each band, by method."""
    found = {}
    for container in axes.containers:
        line, _, (segments,) = container.lines
        heights = [(high - low) / 2 for (_, low), (_, high) in segments.get_segments()]
        found[container.get_label()] = list(zip(line.get_ydata(), heights, strict=True))
    return found


def test_the_losses_have_their_standard_errors_over_windows():
    found = bars(drawn(LOSSES, KEYS).axes[0])
    assert found.keys() == LOSSES.keys()
    for name, windows in LOSSES.items():
        for values, bar in zip(zip(*windows, strict=True), found[name], strict=True):
            expected = statistics.fmean(values), statistics.stdev(values) / len(values) ** 0.5
            assert bar == pytest.approx(expected), name


def test_pass_keys_are_shares_in_per_cent_by_length_and_one_window_has_no_error():
    losses, found = drawn({name: LOSSES[name][:1] for name in LOSSES}, KEYS).axes
    assert {height for each in bars(losses).values() for _, height in each} == {0}
    shown = {
        line.get_label(): dict(zip(*line.get_data(), strict=True)) for line in found.get_lines()
    }
    assert shown == {"none": {972: 75, 3891: 0}, "yarn": {972: 100, 3891: 50}}
    (alone,) = drawn(LOSSES, {}).axes  # without pass keys
    assert bars(alone).keys() == LOSSES.keys()
