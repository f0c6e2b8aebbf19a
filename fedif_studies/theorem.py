"""What Theorem 1 of FedIF's paper allows beside what happens: ``python -m fedif_studies.theorem``.

Softmax regression on digits, ten members, one local step down the whole gradient of each, as the
theorem assumes; noise, if any, is as long as the gradient at four of them. A line tells, in means
over 30 rounds, by how much the loss changed, and by how much it might have risen at most: by the
theorem, and by the descent lemma with which its proof begins. Lines go to
``docs/results/theorem.csv``.
"""

from __future__ import annotations

from functools import partial
from itertools import product

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedif_flower.attacks.updates import gaussian_of_length
from fedif_flower.run.config import RunConfig, default_run_config
from fedif_flower.valuation.influence import influence_from, influence_resolution, project_updates
from fedif_flower.valuation.ledger import ScoreLedger, min_max
from fedif_studies.audit.members import AuditTask
from fedif_studies.lab.run import fill
from fedif_studies.rows import RESULTS, Row

CSV = RESULTS / "theorem.csv"
MEMBERS, NOISY, ROUNDS = 10, 4, 30
Part = tuple[Tensor, Tensor]  # Inputs [n, p], the last of them 1, and labels [n].


def gradient(weights: Tensor, part: Part) -> tuple[Tensor, Tensor]:
    """Return the loss at ``weights`` [p, c] and its gradient ``[p, c]``."""
    moved = weights.clone().requires_grad_()
    loss = cross_entropy(part[0] @ moved, part[1])
    return loss.detach(), torch.autograd.grad(loss, moved)[0]


def smoothness(inputs: Tensor) -> float:
    """Return L of softmax regression: half of the largest eigenvalue of the mean of x x^T."""
    return 0.5 * float(torch.linalg.eigvalsh(inputs.T @ inputs / len(inputs))[-1])


def play(parts: list[Part], rate: float, *, noisy: bool, fedif: bool, seed: int) -> list[Tensor]:
    """Return by round: the change of F, the theorem's bound and the descent lemma's on it."""
    everything = torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])
    smooth = max(smoothness(x) for x, _ in (everything, *parts))
    sizes = torch.tensor([float(len(y)) for _, y in parts], dtype=torch.float64)
    generator, ledger = torch.Generator().manual_seed(seed), ScoreLedger(0.3)
    weights = torch.zeros(everything[0].shape[1], 10, dtype=torch.float64)
    found = []
    for _ in range(ROUNDS):
        before, whole = gradient(weights, everything)
        own = torch.stack([gradient(weights, part)[1].flatten() for part in parts])  # [m, d]
        noise = torch.zeros_like(own)
        for i in range(NOISY if noisy else 0):
            noise[i] = gaussian_of_length(own[i], own[i].norm(), generator)
        updates, flat = -rate * (own + noise), whole.flatten()
        share = sizes / sizes.sum()
        if fedif:
            seen = project_updates(updates, flat)
            ledger.update(
                range(len(parts)), min_max(influence_from(seen), influence_resolution(seen))
            )
            share = ledger.weights(range(len(parts)))
        step = share @ updates
        weights = weights + step.view_as(weights)
        unlike = share @ (own - flat).square().sum(1)  # beta^2, as small as it may be.
        rest = flat.square().sum() + unlike + share @ noise.square().sum(1)
        theorem = 0.5 * flat.square().sum() + rate**2 * (smooth + 1) * rest
        lemma = flat @ step + 0.5 * smooth * step.square().sum()
        found.append(torch.stack([gradient(weights, everything)[0] - before, theorem, lemma]))
    return found


def measure(parts: list[Part], cell: Row) -> list[Row]:
    """Return a line's figures, means over three seeds."""
    rate, noisy, fedif = float(str(cell["rate"])), bool(cell["noise"]), cell["weights"] == "FedIF"
    runs = [play(parts, rate, noisy=noisy, fedif=fedif, seed=seed) for seed in range(3)]
    mean = torch.stack([torch.stack(run).mean(0) for run in runs]).mean(0).tolist()
    names = ("change", "theorem", "descent_lemma")
    return [{name: f"{value:.5g}" for name, value in zip(names, mean, strict=True)}]


def main() -> None:
    """Measure the lines that are not there yet."""
    config = RunConfig.from_run_config(default_run_config() | {"num-clients": MEMBERS})
    parts = [
        (torch.cat([m.pixels.flatten(1), torch.ones(len(m.labels), 1)], 1).double(), m.labels)
        for m in AuditTask(config.replace(device="cpu")).members
    ]
    cells: list[Row] = [
        {"rate": rate, "noise": noise, "weights": weights}
        for rate, noise, weights in product((0.01, 0.1), (0, 1), ("FedAvg", "FedIF"))
    ]
    fill(CSV, cells, partial(measure, parts))


if __name__ == "__main__":
    main()
