"""What every rule owes: clients' order is nothing to it, extremes do not break it, it goes on."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedif_flower.aggregators import (
    RFA,
    AlignIns,
    CentredClipping,
    DnC,
    FedAdp,
    Flame,
    FoolsGold,
    Krum,
    Median,
    SignGuard,
    TrimmedMean,
)
from fedif_flower.errors import ConfigError
from fedif_flower.round import Aggregation, ModelVectors, RoundUpdates
from tests.rounds import a_round

D = 6
RULES = {
    "RFA": RFA,
    "AlignIns": AlignIns,
    "CentredClipping": CentredClipping,
    "DnC": DnC,
    "FedAdp": FedAdp,
    "Flame": lambda: Flame(noise=0.0),
    "FoolsGold": FoolsGold,
    "Krum": Krum,
    "Median": Median,
    "SignGuard": lambda: SignGuard(share=1.0),
    "TrimmedMean": TrimmedMean,
}


def ordered(updates: Tensor, order: list[int] | None = None, server_round: int = 1) -> RoundUpdates:
    """Clients i with updates ``[m, d]`` and i + 1 examples, in an order."""
    order = list(range(len(updates))) if order is None else order
    return a_round(
        updates[order],
        server_round=server_round,
        client_ids=tuple(order),
        num_examples=torch.tensor(order).double() + 1,
        model=ModelVectors(torch.ones(D), torch.zeros(0), {}),
        counters=[{}] * len(order),
    )


def outcome(found: Tensor | Aggregation, updates: RoundUpdates) -> Tensor:
    """Return the step [d]."""
    if isinstance(found, Tensor):
        return found.double()
    used = found.weights if found.applied is None else found.applied
    return used.double() @ updates.client_updates.double()


def drawn(m: int, seed: int) -> Tensor:
    """Draw updates [m, d] that are near none of each other."""
    return torch.randn(m, D, generator=torch.Generator().manual_seed(seed))


# Of equal scores Krum takes the first: test_krum has the order of its scores.
@pytest.mark.parametrize("name", [name for name in RULES if name != "Krum"])
@given(m=st.integers(1, 7), seed=st.integers(0, 2**31), data=st.data())
def test_the_step_does_not_depend_on_the_clients_order(name, m, seed, data):
    updates = drawn(m, seed)
    order = data.draw(st.permutations(range(m)))
    straight, moved = ordered(updates), ordered(updates, order)
    expected = outcome(RULES[name]()(straight), straight)
    found = outcome(RULES[name]()(moved), moved)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("m", [1, 2, 5])
@pytest.mark.parametrize("kind", ["zeros", "equal", "one huge", "all huge"])
def test_extremes_leave_a_finite_step_and_no_negative_weight(name, m, kind):
    updates = drawn(m, 0)
    if kind in ("zeros", "equal"):
        updates = torch.full((m, D), float(kind == "equal"))
    elif kind == "one huge":
        updates[0] = 9e14  # What the screening lets in.
    else:
        updates *= 1e14
    received = ordered(updates)
    found = RULES[name]()(received)
    assert bool(outcome(found, received).isfinite().all())
    if isinstance(found, Aggregation):
        assert bool((found.weights >= 0).all())
        assert float(found.weights.sum()) <= 1 + 1e-9


@pytest.mark.parametrize("name", RULES)
def test_a_rule_goes_on_after_a_restart_as_one_that_never_stopped(name):
    rule, resumed = RULES[name](), RULES[name]()
    rule(ordered(drawn(5, 1)))
    if hasattr(rule, "state_dict"):
        resumed.load_state_dict(rule.state_dict())
    later = ordered(drawn(5, 2), server_round=2)
    assert torch.equal(outcome(resumed(later), later), outcome(rule(later), later))


@pytest.mark.parametrize(
    ("rule", "name", "value"),
    [
        (CentredClipping, "radius", 0.0),
        (RFA, "iterations", -1),
        (FedAdp, "alpha", float("nan")),
        (TrimmedMean, "malicious_fraction", 1.5),
    ],
)
def test_a_setting_out_of_range_is_named(rule, name, value):
    with pytest.raises(ConfigError, match=f"{name} = {value}; allowed: "):
        rule(**{name: value})
