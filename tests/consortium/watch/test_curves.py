"""Curves: few points, and every peak."""

from __future__ import annotations

import math
from xml.etree import ElementTree

from hypothesis import given, settings
from hypothesis import strategies as st

from fedif_consortium.watch.curves import curve, thinned

VALUES = st.lists(st.floats(-1e9, 1e9, allow_nan=False), min_size=1, max_size=60)


@settings(max_examples=50)
@given(values=VALUES, most=st.integers(4, 40))
def test_a_thinned_curve_keeps_ends_and_extremes(values, most):
    series = list(enumerate(values))
    kept = thinned(series, most)
    assert len(kept) <= max(most, 0)
    assert kept == sorted(set(kept))
    assert set(kept) <= set(series)
    assert (kept[0], kept[-1]) == (series[0], series[-1])
    for find in (min, max):
        assert find(v for _, v in kept) == find(values)


def parsed(picture: str) -> ElementTree.Element:
    return ElementTree.fromstring(str(picture))


@settings(max_examples=100)
@given(values=st.lists(st.floats(), max_size=20), rounds=st.integers(0, 10**6))
def test_whatever_was_recorded_is_a_picture_of_finite_numbers(values, rounds):
    picture = parsed(curve("loss", {"test": list(enumerate(values))}, rounds, percent=False))
    numbers = [
        float(number)
        for element in picture.iter()
        for name in ("x", "y", "x1", "y1", "x2", "y2", "cx", "cy")
        if (number := element.get(name)) is not None
    ]
    assert numbers
    assert all(math.isfinite(number) and -1 <= number <= 641 for number in numbers)
