"""The cells of the study: the core, and lines with other values on some of the core's axes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from fedif_flower.settings import Scalar
from fedif_studies.held_out.labels import CONFUSED, HALF, MISSING, SINGLE, SYMMETRIC, WHOLE
from fedif_studies.rows import Row

LEAST_TEST = 100  # At least so many examples are left to test on.
MOST_HELD_OUT: Mapping[str, int] = {
    "digits": 600 - LEAST_TEST,
    "fashion-mnist": 10_000 - LEAST_TEST,
    "cifar10": 10_000 - LEAST_TEST,
}
# Treatments of the held-out set: take it as it is, leave out the examples that look wrong, or
# correct the loss for the estimated share of wrong labels.
AS_IT_IS = "as it is"
LEFT_OUT = "left out"
CORRECTED = "corrected"
TREATMENTS = (AS_IT_IS, LEFT_OUT, CORRECTED)
# Treatments that correct the loss for the chance of each class to be labelled as each other one:
BY_CLASS = "by class"  # by the estimated chances,
TRUE_CHANCES = "true chances"  # or by those that the study has used.
KEY = (
    "data",
    "attack",
    "strategy",
    "examples",
    "wrong",
    "kind",
    "classes",
    "treatment",
    "seed",
)
ATTRIBUTION: Mapping[str, Scalar] = {"attribution": "simpson"}
STRATEGIES: Mapping[str, Mapping[str, Scalar]] = {
    "fedif": {},
    "fedavg": ATTRIBUTION,
    "influence-descent": ATTRIBUTION,
    "fltrust": {},
    "afedsv": ATTRIBUTION,
}
SIX_AS_ZERO = "six-as-zero"
ATTACKS: Mapping[str, Mapping[str, Scalar]] = {
    "none": {"attack": "none"},
    "label-noise": {"attack": "label-noise"},
    "poisoned-fl": {"attack": "poisoned-fl"},
    SIX_AS_ZERO: {
        "attack": "fedif_studies.held_out.labels:SixAsZero",
        "malicious-fraction": 0.4,
    },
}
# The values on the axes of the core. A line has other values on some of the axes.
CORE: Mapping[str, Sequence[Any]] = {
    "attack": ("none", "label-noise"),
    "strategy": ("fedif", "fedavg"),
    "kind": (SYMMETRIC,),
    "classes": (WHOLE,),
    "treatment": TREATMENTS,
}
_TWO = (AS_IT_IS, CORRECTED)
LINES: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "core": CORE,
    "classes": {**CORE, "classes": (HALF, MISSING), "treatment": _TWO},
    "attacks": {**CORE, "attack": ("poisoned-fl", SIX_AS_ZERO), "treatment": _TWO},
    "targeted": {
        **CORE,
        "attack": (SIX_AS_ZERO,),
        "classes": (SINGLE, MISSING),
        "treatment": _TWO,
    },
    "strategies": {
        **CORE,
        "strategy": ("influence-descent", "fltrust", "afedsv"),
        "treatment": _TWO,
    },
    "confused": {
        **CORE,
        "kind": (CONFUSED,),
        "treatment": (AS_IT_IS, CORRECTED, BY_CLASS, TRUE_CHANCES),
    },
    "by-class": {**CORE, "treatment": (BY_CLASS,)},
    # For data whose runs take minutes each: FedIF alone, under an attack.
    "hard": {
        **CORE,
        "attack": ("label-noise",),
        "strategy": ("fedif",),
        "treatment": (AS_IT_IS, CORRECTED, BY_CLASS),
    },
}


def cells_of(
    line: str, sizes: Mapping[str, Sequence[int]], wrong: Sequence[float], seeds: int
) -> Iterator[Row]:
    """Yield the cells of a line for each data set, small held-out sets first.

    Confused labels are left out where the share of wrong ones is 0: without wrong labels, such a
    cell would be the same as one of the core.
    """
    axes = LINES[line]
    for name, of_data in sizes.items():
        points = product(
            of_data,
            range(seeds),
            axes["attack"],
            axes["strategy"],
            wrong,
            axes["kind"],
            axes["classes"],
            axes["treatment"],
        )
        for size, seed, attack, strategy, share, kind, classes, treatment in points:
            if kind == CONFUSED and share == 0:
                continue
            values = (name, attack, strategy, size, share, kind, classes, treatment, seed)
            yield dict(zip(KEY, values, strict=True))
