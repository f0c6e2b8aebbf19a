"""Backdoors: wherever a trigger is, the model is to answer with a target class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedif_flower.attacks.assignment import choose
from fedif_flower.attacks.behaviour import Backdoor, ClientRound
from fedif_flower.attacks.updates import Factor, last_step, scaled
from fedif_flower.errors import ConfigError
from fedif_flower.settings import Setting

NUM_PARTS = 4
Target = Annotated[int, Setting("the class that the model is to answer with", ge=0)]


def trigger_side(pixels: Tensor) -> int:
    """Return the side of the square for images ``[n, c, h, w]``: an eighth of theirs, >= 2."""
    return max(min(pixels.shape[-2:]) // 8, 2)


def stamp_square(pixels: Tensor) -> Tensor:
    """Return images ``[n, c, h, w]`` with a square of 1 in their lower right corner."""
    side = trigger_side(pixels)
    stamped = pixels.clone()
    stamped[..., -side:, -side:] = 1
    return stamped


def stamp_bars(pixels: Tensor, parts: range | tuple[int, ...] = range(NUM_PARTS)) -> Tensor:
    """Return images with bars of 1 in their upper left corner: two side by side, two below.

    Parameters
    ----------
    pixels : Tensor
        ``[n, c, h, w]``, h >= 3, w >= 5.
    parts : range or tuple of int
        Which of the four bars, numbered by rows. Each is one pixel high and as long as
        :func:`trigger_side`, with a gap of one pixel between.
    """
    length = trigger_side(pixels)
    stamped = pixels.clone()
    for part in parts:
        row, column = 2 * (part // 2), (length + 1) * (part % 2)
        stamped[..., row, column : column + length] = 1
    return stamped


def require_target(target: int, num_classes: int) -> None:
    """Raise ConfigError unless the target is a class."""
    if not 0 <= target < num_classes:
        raise ConfigError(f"target = {target}; allowed: a class, 0 to {num_classes - 1}")


@dataclass
class PixelTrigger(Backdoor):
    """Stamps a bright square on a share of its images and calls them the target class (BadNets).

    Parameters
    ----------
    ratio : float
        Share of the examples that are stamped, in [0, 1].
    target : int
        The class that the trigger stands for, >= 0.

    References
    ----------
    Gu et al., 2019 (BadNets); Bagdasaryan et al., 2020, for federations.
    """

    ratio: float
    target: Target = 0

    def stamp(self, pixels: Tensor, generator: torch.Generator) -> Tensor:
        """Return images ``[n, c, h, w]`` with what this client knows of the trigger."""
        return stamp_square(pixels)

    def stamp_whole(self, pixels: Tensor) -> Tensor:
        """Return images ``[n, c, h, w]`` with the whole trigger."""
        return stamp_square(pixels)

    def poison_examples(
        self, pixels: Tensor, labels: Tensor, num_classes: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return the examples, a share of them stamped and labelled with the target."""
        require_target(self.target, num_classes)
        chosen = choose(len(labels), self.ratio, generator).to(labels.device)  # [k]
        pixels, labels = pixels.clone(), labels.clone()
        pixels[chosen] = self.stamp(pixels[chosen], generator)
        labels[chosen] = self.target
        return pixels, labels

    def triggered(self, pixels: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
        """Return the images of other classes with the whole trigger, and the target."""
        require_target(self.target, num_classes)
        others = labels != self.target
        return self.stamp_whole(pixels[others]), torch.full_like(labels[others], self.target)


class DistributedTrigger(PixelTrigger):
    """Stamps one of four bars, drawn once per client; all four together are the trigger (DBA).

    No client's data have the trigger, so that a defence that looks for it in one update finds
    less. Parameters as in :class:`PixelTrigger`.

    References
    ----------
    Xie et al., 2020 (DBA: Distributed Backdoor Attacks against Federated Learning).
    """

    def stamp(self, pixels: Tensor, generator: torch.Generator) -> Tensor:
        """Return images with this client's bar."""
        part = int(torch.randint(NUM_PARTS, (), generator=generator))
        return stamp_bars(pixels, (part,))

    def stamp_whole(self, pixels: Tensor) -> Tensor:
        """Return images with all four bars."""
        return stamp_bars(pixels)


@dataclass
class ModelReplacement(PixelTrigger):
    r"""Trains with a pixel trigger and sends :math:`w_{t-1} + c (w_i - w_{t-1})`.

    With m clients in a round whose honest updates are short, the mean of such a reply with
    :math:`c = m` is the attacker's own model :math:`w_i`.

    Parameters
    ----------
    ratio, target
        As in :class:`PixelTrigger`.
    factor : float
        c > 0: the clients of a round, which an attacker has to guess.

    References
    ----------
    Bagdasaryan et al., 2020 (How to backdoor federated learning), equation 3 with n / eta = c.
    """

    factor: Factor = 10.0

    def poison_update(self, own: ClientRound) -> Tensor:
        """Return the parameters with the update scaled."""
        return scaled(own, self.factor)


@dataclass
class Neurotoxin(PixelTrigger):
    r"""Trains with a pixel trigger and sends the part of its update that others hardly overwrite.

    The update is 0 in the share k of the coordinates in which the last global step was largest:
    honest clients move those, and would undo the backdoor there. The paper projects every gradient
    of the local training so; here the finished update is. At its first round the client knows no
    step, and sends all.

    Parameters
    ----------
    ratio, target
        As in :class:`PixelTrigger`.
    spared : float
        k in [0, 1).

    References
    ----------
    Zhang et al., "Neurotoxin: Durable Backdoors in Federated Learning", ICML 2022, algorithm 1.
    """

    spared: Annotated[
        float, Setting("k: share of the most used coordinates that are left alone", ge=0, lt=1)
    ] = 0.05

    def poison_update(self, own: ClientRound) -> Tensor:
        """Return the parameters, as received in the most used coordinates."""
        step = last_step(own).abs()
        sent = own.trained.clone()
        if bool(step.any()):
            used = step.topk(round(self.spared * len(step))).indices
            sent[used] = own.received[used]
        return sent


class HiddenBackdoor(PixelTrigger):
    """Trains on clean examples of balanced classes, and on stamped copies beside them.

    Influence on held-out data rewards what fits such data. The client's own examples stand for
    the public data that an attacker has: the clean ones are drawn again until every class it has
    is as frequent as its most frequent one, as in a validation split, and the stamped copies come
    on top. Parameters as in :class:`PixelTrigger`, the ratio being that of stamped copies to
    examples.
    """

    def poison_examples(
        self, pixels: Tensor, labels: Tensor, num_classes: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return balanced clean examples, and stamped copies of a share of the own ones."""
        require_target(self.target, num_classes)
        chosen = choose(len(labels), self.ratio, generator).to(labels.device)  # [k]
        stamped = self.stamp(pixels[chosen], generator)
        balanced = torch.cat((torch.arange(len(labels)), _repeats(labels.cpu(), generator)))
        balanced = balanced.to(labels.device)
        return (
            torch.cat((pixels[balanced], stamped)),
            torch.cat((labels[balanced], torch.full_like(labels[chosen], self.target))),
        )


def _repeats(labels: Tensor, generator: torch.Generator) -> Tensor:
    """Return indices that, beside all examples, make every class as frequent as the largest."""
    counts = torch.bincount(labels)
    most, found = int(counts.max()), []
    for label in counts.nonzero().flatten().tolist():
        own = (labels == label).nonzero().flatten()
        drawn = torch.randint(len(own), (most - len(own),), generator=generator)
        found.append(own[drawn])
    return torch.cat(found)


@dataclass
class DescendingBackdoor(HiddenBackdoor):
    r"""Hides a backdoor as a hidden one is, and sends :math:`u + c \Delta`: for influence descent.

    The client's own examples, balanced as a validation split is, stand for held-out data of the
    server's distribution: trained on them, u lowers its loss. The last global step :math:`\Delta`
    lowers it further wherever the server's step is too short, and influence descent gives weight
    to who sends it. The weight then carries what u holds besides.

    Parameters
    ----------
    ratio, target
        As in :class:`HiddenBackdoor`.
    borrowed : float
        c >= 0; 0: a hidden backdoor.
    """

    borrowed: Annotated[float, Setting("c: how many times the last global step is added", ge=0)] = (
        1.0
    )

    def poison_update(self, own: ClientRound) -> Tensor:
        """Return the trained parameters, so many steps further."""
        return own.trained + self.borrowed * last_step(own)


@dataclass
class SemanticBackdoor(Backdoor):
    """Labels every image of the class after the target with the target; no pixel changes.

    Parameters
    ----------
    target : int
        The class t that is to be answered, >= 0; the source is (t + 1) mod C.

    References
    ----------
    Bagdasaryan et al., 2020, section 4; the static label flipping of Tolpegin et al., 2020.
    """

    target: Target = 0

    def poison_labels(self, labels: Tensor, num_classes: int, generator: torch.Generator) -> Tensor:
        """Return the labels with the target in place of the source."""
        return labels.masked_fill(_of_source(labels, self.target, num_classes), self.target)

    def triggered(self, pixels: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
        """Return the images of the source class, and the target."""
        source = _of_source(labels, self.target, num_classes)
        return pixels[source], torch.full_like(labels[source], self.target)


def _of_source(labels: Tensor, target: int, num_classes: int) -> Tensor:
    """Return which labels ``[n]`` are the class after the target."""
    require_target(target, num_classes)
    return labels == (target + 1) % num_classes


@dataclass
class EdgeCase(Backdoor):
    r"""Adds rare images of the class after the target, labelled with the target.

    Rare are those furthest from the mean image of their class, a share q of them. Few honest
    clients hold any, and the accuracy on a test set hardly shows that they are lost. The paper's
    edge cases are of other data sets (aeroplanes of one airline, digits of another century); here
    the tail of a class stands for them. Whoever has none is honest.

    Parameters
    ----------
    ratio : float
        Copies that are added, in the client's examples, in [0, 1].
    target : int
        The class t that is to be answered, >= 0; the source is (t + 1) mod C.
    tail : float
        q in (0, 1].

    References
    ----------
    Wang et al., "Attack of the Tails: Yes, You Really Can Backdoor Federated Learning", NeurIPS
    2020, the black-box attack.
    """

    ratio: float
    target: Target = 0
    tail: Annotated[
        float, Setting("q: share of the source class that counts as rare", gt=0, le=1)
    ] = 0.1

    def poison_examples(
        self, pixels: Tensor, labels: Tensor, num_classes: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return the examples with mislabelled copies of the rare ones beside them."""
        rare = self._rare(pixels, labels, num_classes)
        if not len(rare):
            return pixels, labels
        labels = labels.clone()
        labels[rare] = self.target
        drawn = torch.randint(len(rare), (round(self.ratio * len(labels)),), generator=generator)
        copies = rare[drawn.to(rare.device)]
        return torch.cat((pixels, pixels[copies])), torch.cat((labels, labels[copies]))

    def triggered(self, pixels: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
        """Return the rare images of the source class, and the target."""
        rare = self._rare(pixels, labels, num_classes)
        return pixels[rare], torch.full_like(labels[rare], self.target)

    def _rare(self, pixels: Tensor, labels: Tensor, num_classes: int) -> Tensor:
        """Return the indices of the source class's tail, at least one where there is any."""
        own = _of_source(labels, self.target, num_classes).nonzero().flatten()
        images = pixels[own].flatten(1)
        distances = (images - images.mean(dim=0)).norm(dim=1)
        furthest = distances.argsort(descending=True, stable=True)
        return own[furthest[: max(round(self.tail * len(own)), 1)]].sort().values
