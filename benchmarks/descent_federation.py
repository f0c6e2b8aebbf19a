"""A federation in plain PyTorch, small enough to try many aggregation rules in one process.

6,000 images, of Fashion-MNIST unless said otherwise, LeNet-5, 100 clients of Dirichlet(1)
partitions, ten a round. The test split is divided in three: D', which a rule may look at; a part by
which rules are chosen; and the rest, which is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.descent_judge import Judge
from benchmarks.descent_training import train_together
from fedif_flower.attacks.adversarial import AdversarialSamples, pgd
from fedif_flower.attacks.assignment import malicious_partitions, poison_ratio
from fedif_flower.attacks.label_noise import flip_labels
from fedif_flower.client.training import evaluate, train_local
from fedif_flower.round import combine
from fedif_flower.seeding import numpy_generator, torch_generator
from fedif_flower.tasks.config import TrainingConfig
from fedif_flower.tasks.data import Normalization, load_dataset, to_pixels
from fedif_flower.tasks.models import build_model

CLIENTS, SAMPLED, IMAGES = 100, 10, 6000
HELD_OUT, CHOOSING = 2000, 2000  # Images of D', and of the part by which rules are chosen.
TRAINING = TrainingConfig(local_epochs=5, batch_size=16, learning_rate=0.01, momentum=0.9)
JUDGED_ROUNDS = 10  # At the end; the mean over every second of them is the result.


@dataclass(frozen=True)
class Column:
    """An attack, as in the paper's tables."""

    attack: str
    malicious: float = 0.0
    low: float = 0.0
    high: float = 0.0


COLUMNS = {
    "clean": Column("none"),
    "label-noise": Column("label-noise", 0.7, 0.7, 0.8),
    "gradient-noise": Column("gradient-noise", 0.5),
    "pgd": Column("adversarial", 0.7, 0.7, 0.8),
}
SIGN_FLIP = Column("sign-flip", 0.2)


@dataclass(frozen=True)
class HeldOut:
    """What D' is: its size, the share of its labels that are wrong, classes it has none of."""

    size: int = HELD_OUT
    label_noise: float = 0.0
    missing: tuple[int, ...] = ()


@dataclass(frozen=True)
class Round:
    """What a rule is given: updates ``[m, d]`` of clients ``ids``, and the judge."""

    number: int
    params: Tensor
    updates: Tensor
    counts: Tensor
    ids: tuple[int, ...]
    judge: Judge
    mean: Tensor  # [d]: the server's running mean of steps.
    malicious: Tensor  # [m], bool: for the oracle alone.
    perturbed: Callable[[], Judge]

    @property
    def shares(self) -> Tensor:
        """The shares of the examples, ``[m]``."""
        return self.counts / self.counts.sum()


class WeighingRule(Protocol):
    """Weighs a round; ``beta`` is the server's momentum, ``mu`` that of FedProx's clients."""

    beta: float
    mu: float

    def weigh(self, given: Round) -> Tensor:
        """Return coefficients ``[m]``."""
        ...


@dataclass
class Result:
    """Means over the last rounds, and what the rule cost."""

    validation: float
    choosing: float
    test: float
    malicious_weight: float
    auc: float
    passes: float


@dataclass
class OneRound:
    """Means over rounds: loss on D' after the step, loss and accuracy on the choosing part."""

    own_loss: float
    loss: float
    accuracy: float
    malicious_weight: float
    auc: float
    passes: float


class Relative:
    """Each client's weights relative to its examples, over the rounds."""

    def __init__(self, malicious: frozenset[int]) -> None:
        self._malicious = malicious
        self._ratios: dict[int, list[float]] = {}

    def add(self, given: Round, weights: Tensor) -> float:
        """Take in a round; return the malicious clients' share of its weight."""
        total = float(weights.sum())
        if not total > 0:
            return float("nan")
        for i, ratio in zip(given.ids, (weights / total / given.shares).tolist(), strict=True):
            self._ratios.setdefault(i, []).append(ratio)
        return float(weights[given.malicious].sum()) / total

    def auc(self) -> float:
        """Return how well low relative weights tell malicious clients; NaN if there are none."""
        marks = [i in self._malicious for i in self._ratios]
        if len(set(marks)) < 2:
            return float("nan")
        from sklearn.metrics import roc_auc_score

        return float(roc_auc_score(marks, [-np.mean(own) for own in self._ratios.values()]))


class Federation:
    """One seed of one column, to be run with any rule."""

    def __init__(
        self,
        column: Column,
        seed: int,
        data_dir: str,
        held_out: HeldOut | None = None,
        model: str = "lenet5",
        dataset_name: str = "fashion-mnist",
    ) -> None:
        self.column, self.seed = column, seed
        held_out = held_out or HeldOut()
        dataset = load_dataset(dataset_name, data_dir)
        self.normalize = Normalization(dataset.mean, dataset.std)
        # The small model sees every second pixel's neighbourhood: 14 x 14.
        self._pool = 2 if model == "mlp" else 1
        channels, height = dataset.image_shape[:2]
        side = height // self._pool
        self.model = build_model(model, (channels, side, side), 10, seed=seed)
        draw = numpy_generator("descent", seed)
        self.clients = self._divide(dataset, draw)
        chosen = malicious_partitions(CLIENTS, column.malicious, seed) if column.malicious else ()
        self.malicious = frozenset(chosen)
        order = draw.permutation(len(dataset.test.labels))
        pixels = self._pixels_of(dataset.test.images[:], dataset.max_value)
        inputs, labels = self.normalize(pixels), torch.from_numpy(dataset.test.labels[:].copy())
        self._pixels = pixels
        index = torch.from_numpy(order)
        judged, tested = index[HELD_OUT : HELD_OUT + CHOOSING], index[HELD_OUT + CHOOSING :]
        self._judged = (inputs[judged], labels[judged])
        self._tested = (inputs[tested], labels[tested])
        own = self._held_out(index[:HELD_OUT], labels, held_out)
        noisy = flip_labels(labels[own], 10, held_out.label_noise, torch_generator("noise", seed))
        self._own, self._own_labels = own, noisy
        self.judge = Judge(self.model, inputs[own], noisy)

    def _pixels_of(self, images: np.ndarray, max_value: int) -> Tensor:
        return functional.avg_pool2d(to_pixels(images, max_value), self._pool)

    @staticmethod
    def _held_out(index: Tensor, labels: Tensor, held_out: HeldOut) -> Tensor:
        """Return a stratified part of D' without the missing classes."""
        present = [c for c in range(10) if c not in held_out.missing]
        each = max(held_out.size // len(present), 1)
        return torch.cat([index[labels[index] == c][:each] for c in present])

    def _divide(self, dataset: object, draw: np.random.Generator) -> list[tuple[Tensor, Tensor]]:
        train = dataset.train  # type: ignore[attr-defined]
        used = np.sort(draw.permutation(len(train.labels))[:IMAGES])
        labels = train.labels[used]
        owner = np.empty(IMAGES, dtype=np.int64)
        for label in range(10):
            own = np.flatnonzero(labels == label)
            owner[own] = draw.choice(CLIENTS, len(own), p=draw.dirichlet(np.ones(CLIENTS)))
        pixels = self._pixels_of(train.images[used], dataset.max_value)  # type: ignore[attr-defined]
        targets = torch.from_numpy(labels.copy())
        owned = [torch.from_numpy(np.flatnonzero(owner == k)) for k in range(CLIENTS)]
        return [(pixels[own], targets[own]) for own in owned]

    def perturbed(self) -> Judge:
        """Return D' as PGD changes it against the current model."""
        generator = torch_generator("descent-pgd", self.seed)
        pixels = pgd(
            self.model,
            self._pixels[self._own],
            self._own_labels,
            self.normalize,
            generator,
            steps=5,
        )
        return Judge(self.model, self.normalize(pixels), self._own_labels)

    def run(
        self, rule: WeighingRule, rounds: int, on_round: Callable[[Round], None] | None = None
    ) -> Result:
        """Train with a rule; return the means over the last rounds."""
        params = nn.utils.parameters_to_vector(self.model.parameters()).detach().clone()
        initial, mean = params.clone(), torch.zeros_like(params)
        self.judge.passes = 0.0
        accuracies, shares, relative = [], [], Relative(self.malicious)
        for number in range(1, rounds + 1):
            draw = numpy_generator("descent-sample", self.seed, number)
            ids = sorted(draw.choice(CLIENTS, SAMPLED, replace=False).tolist())
            ids = [i for i in ids if len(self.clients[i][1]) > 1]
            updates = self._train(ids, params, number, rule.mu)
            counts = torch.tensor([len(self.clients[i][1]) for i in ids], dtype=torch.float64)
            malicious = torch.tensor([i in self.malicious for i in ids])
            self._load(params)
            given = Round(
                *(number, params, updates, counts, tuple(ids), self.judge),
                *(rule.beta * mean, malicious, self.perturbed),
            )
            if on_round is not None:
                on_round(given)
            weights = rule.weigh(given)
            step = combine(torch.zeros_like(params), updates, weights)
            mean = rule.beta * mean + (1 - rule.beta) * step
            params = params + mean
            shares.append(relative.add(given, weights))
            if number > rounds - JUDGED_ROUNDS and (rounds - number) % 2 == 0:
                self._load(params)
                accuracies.append([evaluate(self.model, x, y)[1] for x, y in self._parts()])
        self._load(initial)
        return Result(
            *(float(value) for value in np.mean(accuracies, axis=0)),
            malicious_weight=float(np.nanmean(shares)),
            auc=relative.auc(),
            passes=self.judge.passes / rounds,
        )

    def one_round(self, rule: WeighingRule, rounds: Sequence[Round]) -> OneRound:
        """Return where a rule leads from each of these rounds, by itself."""
        self.judge.passes = 0.0
        found, shares, relative = [], [], Relative(self.malicious)
        for given in rounds:
            self._load(given.params)
            weights = rule.weigh(given)
            self._load(combine(given.params, given.updates, weights))
            (own, _), (loss, accuracy) = (evaluate(self.model, *p) for p in self._parts()[:2])
            found.append((own, loss, accuracy))
            shares.append(relative.add(given, weights))
        return OneRound(
            *(float(value) for value in np.mean(found, axis=0)),
            malicious_weight=float(np.nanmean(shares)),
            auc=relative.auc(),
            passes=self.judge.passes / len(rounds),
        )

    def _parts(self) -> list[tuple[Tensor, Tensor]]:
        """Return D', the part by which rules are chosen, and the one that is reported."""
        return [(self.judge.inputs, self.judge.labels), self._judged, self._tested]

    def _load(self, params: Tensor) -> None:
        nn.utils.vector_to_parameters(params.clone(), self.model.parameters())

    def _train(self, ids: Sequence[int], params: Tensor, number: int, mu: float) -> Tensor:
        """Return the clients' updates ``[m, d]``."""
        self._load(params)
        generators = [torch_generator("descent-client", self.seed, i, number) for i in ids]
        data = [self._data(i, g) for i, g in zip(ids, generators, strict=True)]
        inputs, labels = zip(*data, strict=True)
        if self._pool > 1:
            updates = train_together(params, inputs, labels, TRAINING, generators, mu)
        else:
            updates = torch.empty(len(ids), len(params))
            for k, generator in enumerate(generators):
                self._load(params)
                train_local(self.model, inputs[k], labels[k], TRAINING, generator, proximal_mu=mu)
                updates[k] = nn.utils.parameters_to_vector(self.model.parameters()).detach()
            updates -= params
        for k, (i, generator) in enumerate(zip(ids, generators, strict=True)):
            if i in self.malicious and self.column.attack == "gradient-noise":
                updates[k] += 0.1 * torch.randn(len(params), generator=generator)
            elif i in self.malicious and self.column.attack == "sign-flip":
                updates[k] *= -1
        return updates

    def _data(self, client: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return what a client trains on: normalised images and labels."""
        pixels, labels = self.clients[client]
        attack = self.column.attack if client in self.malicious else "none"
        if attack in ("label-noise", "adversarial"):
            ratio = poison_ratio(self.column.low, self.column.high, self.seed, client)
            if attack == "label-noise":
                once = torch_generator("descent-labels", self.seed, client)
                labels = flip_labels(labels, 10, ratio, once)
            else:
                pixels = AdversarialSamples(ratio).poison_inputs(
                    self.model, pixels, labels, self.normalize, generator
                )
        return self.normalize(pixels), labels
