"""FedCorr [Xu et al., 2022]: clients with wrong labels are found by their answers, and corrected.

Paper: https://arxiv.org/abs/2204.04677
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedif_flower.constructors import CheckedFields
from fedif_flower.local_methods import Guide, LocalMethod, LocalRound, LocalTerm, Told, Turn
from fedif_flower.settings import Setting
from fedif_flower.tasks.batches import tensor_pair
from fedif_flower.tasks.modules import module_mode
from fedif_flower.tasks.task import Data, Task
from fedif_studies.local_methods.classifier import classifier_misfit
from fedif_studies.local_methods.mixture import in_higher, noisy_of

FIGURES = "dimension-and-level"
# The stages, as clients are told them.
PASS = "pass"
FINE_TUNING = "fine-tuning"
USUAL = "usual"
# What the server tells a client.
_STAGE = "stage"
_LEVEL = "level"
# What a client keeps between its rounds.
_LABELS = "fedcorr-labels"
_OWN_LABELS = "fedcorr-own-labels"
_LOSSES = "fedcorr-losses"
_DONE = "fedcorr-done"
_BATCH = 256
_EPSILON = 1e-8


@dataclass(frozen=True)
class FedCorr(CheckedFields, LocalMethod):
    r"""Members found noisy by their answers' dimension correct labels that the global model doubts.

    Three stages: ``passes`` over all members, in which the noisy ones are found
    (:func:`intrinsic_dimensions`), how many of their labels are wrong is estimated
    (:func:`noise_level`) and the worst are corrected; ``fine_tuning`` rounds with clean members
    alone; and usual rounds with the labels as they are now. In the passes a member's loss is

    .. math::
        \lambda \operatorname{CE}(f(\tilde x), y) + (1 - \lambda) \operatorname{CE}(f(\tilde x), y')
        + \beta \hat\mu \lVert w - w_{t-1} \rVert^2, \qquad
        \tilde x = \lambda x + (1 - \lambda) x', \quad
        \lambda \sim \operatorname{Beta}(\alpha, \alpha)

    with :math:`(x', y')` another example of the batch and :math:`\hat\mu` the member's noise level.

    Parameters
    ----------
    passes : int
        Over all members, >= 1.
    fine_tuning : int
        Rounds, >= 0.
    relabelled : float
        Of the labels estimated to be wrong, those that a pass may correct, in [0, 1].
    confidence : float
        The global model's least probability of what a label is corrected to, in [0, 1].
    clean_level : float
        Members with at most this noise level take part in the fine-tuning, in [0, 1].
    mixup : float
        :math:`\alpha` >= 0; 0: examples are not mixed.
    proximal : float
        :math:`\beta` >= 0.
    neighbours : int
        Of each answer, by which the dimension is told, >= 2.
    num_classes : int
        C >= 2; a run config's task says it.
    seed : int
        Of the mixtures.
    """

    passes: Annotated[int, Setting("over all members, in which noisy ones are found", ge=1)] = 5
    fine_tuning: Annotated[int, Setting("rounds with clean members alone", ge=0)] = 20
    relabelled: Annotated[
        float,
        Setting("of the labels estimated to be wrong, those a pass may correct", ge=0, le=1),
    ] = 0.5
    confidence: Annotated[
        float,
        Setting("the global model's least probability of a corrected label", ge=0, le=1),
    ] = 0.5
    clean_level: Annotated[
        float, Setting("members with at most this noise level are fine-tuned on", ge=0, le=1)
    ] = 0.1
    mixup: Annotated[float, Setting("alpha of the mixed examples; 0: none are", ge=0)] = 1.0
    proximal: Annotated[float, Setting("beta of noisy members' proximal term", ge=0)] = 5.0
    neighbours: Annotated[int, Setting("of each answer, by which the dimension is told", ge=2)] = 20
    num_classes: int = 0
    seed: int = 0

    def misfit(self, task: Task, data: Data) -> str:
        """Return that it needs a classifier, and labels in an order that stays."""
        missing = super().misfit(task, data) or classifier_misfit(task, data)
        if missing:
            return missing
        pair = tensor_pair(data)
        if pair is None:
            return "data as a pair of tensors (inputs, labels)"
        inputs, _ = pair
        if self.mixup and not inputs.is_floating_point():
            return "inputs of float numbers, or FedCorr.mixup = 0"
        return ""

    def guide(self) -> Guide:
        """Return what leads through the stages."""
        return FedCorrGuide(self)

    def examples(self, local: LocalRound) -> Any:
        """Return the examples with the labels as they are now, corrected where it is time."""
        pair = tensor_pair(local.data)
        assert pair is not None  # misfit
        inputs, own_labels = pair
        own_labels_now = own_labels.cpu()
        own_labels_before = local.memory.get(_OWN_LABELS)
        # Other data than last time: what is remembered of single examples is void.
        if own_labels_before is None or not torch.equal(own_labels_before, own_labels_now):
            local.memory[_OWN_LABELS] = own_labels_now
            local.memory[_LABELS] = own_labels_now
            local.memory[_LOSSES] = torch.zeros(len(own_labels), dtype=torch.float64)
            local.memory.pop(_DONE, None)
        labels = local.memory[_LABELS]
        level = float(local.told.get(_LEVEL, 0.0))
        stage = local.told.get(_STAGE)
        if level and stage != FINE_TUNING and _DONE not in local.memory:
            if stage == PASS:
                count = int(len(labels) * level * self.relabelled)
                rows = local.memory[_LOSSES].argsort(descending=True)[:count]
            else:
                # Once, after the fine-tuning, all labels that the model doubts may go.
                rows = torch.arange(len(labels))
                local.memory[_DONE] = torch.ones(1)
            probabilities = answers(local.model, inputs).softmax(dim=1)  # [n, C]
            labels = corrected(labels, probabilities, rows, self.confidence)
        local.memory[_LABELS] = labels
        return inputs, labels.to(own_labels)

    def term(self, local: LocalRound) -> LocalTerm:
        """Return what the passes add to a step: mixed examples, and the proximal term."""
        if local.told.get(_STAGE) != PASS:
            return LocalTerm()
        term = _Mixed(local.model, self.mixup) if self.mixup else LocalTerm()
        # Its gradient is twice that of mu / 2 times the square.
        term.proximal_mu = 2 * self.proximal * float(local.told.get(_LEVEL, 0.0))
        return term

    def finish(self, local: LocalRound, term: LocalTerm, sent: Tensor) -> None:  # noqa: ARG002
        """Report, after a round of a pass, the dimension of its answers and its noise level."""
        if local.told.get(_STAGE) != PASS:
            return
        inputs, labels = local.data
        outputs = answers(local.model, inputs)
        losses = functional.cross_entropy(outputs, labels.cpu(), reduction="none").double()
        local.memory[_LOSSES] = local.memory[_LOSSES] + losses.nan_to_num(posinf=0.0)
        dimensions = intrinsic_dimensions(outputs.softmax(dim=1), self.neighbours)
        level = noise_level(local.memory[_LOSSES], self.seed)
        term.report[FIGURES] = torch.tensor([float(dimensions.mean()), level]).double()


class _Reported(NamedTuple):
    """What a member has reported: the sum of its dimensions, the passes, its last noise level."""

    dimensions: float = 0.0
    passes: int = 0
    level: float = 0.0

    @property
    def mean_dimension(self) -> float:
        return self.dimensions / self.passes


class FedCorrGuide(Guide):
    """Leads through the passes, splits the members after each, and lets clean ones fine-tune."""

    def __init__(self, method: FedCorr) -> None:
        super().__init__()
        self._method = method
        self._passed = 0  # Passes that are over.
        self._asked: set[int] = set()  # Members asked in this pass.
        self._passed_before: int | None = None  # The first round after the passes.
        self._members: dict[int, _Reported] = {}

    def turn(self, members: Sequence[int], server_round: int) -> Turn:
        """Return who was not asked in this pass; in the fine-tuning, clean members."""
        if self._passed_before is None and members and not set(members) - self._asked:
            self._end_pass(server_round)
        if self._passed_before is None:
            allowed = [i for i in members if i not in self._asked]
        elif self._stage(server_round) == FINE_TUNING:
            allowed = [i for i in members if self.level(i) <= self._method.clean_level]
        else:
            allowed = list(members)
        return Turn(allowed or members)

    def asked(self, client_ids: Sequence[int], server_round: int) -> None:  # noqa: ARG002
        """Note who is asked in a pass."""
        if self._passed_before is None:
            self._asked.update(client_ids)

    def told(self, client_id: int, server_round: int) -> Told:
        """Return the stage, and the client's noise level as the last pass left it."""
        return {_STAGE: self._stage(server_round), _LEVEL: self.level(client_id)}

    def expected(self, server_round: int) -> Mapping[str, int]:
        """Return that dimension and level are expected in a pass."""
        return {FIGURES: 2} if self._stage(server_round) == PASS else {}

    def take(
        self, server_round: int, client_ids: Sequence[int], reports: Mapping[str, Tensor]
    ) -> None:
        """Add up the dimensions, and keep the levels."""
        if self._stage(server_round) != PASS:
            return
        figures = reports[FIGURES].clamp_min(0.0).tolist()
        for client_id, (dimension, level) in zip(client_ids, figures, strict=True):
            before = self._members.get(client_id, _Reported())
            self._members[client_id] = _Reported(
                dimensions=before.dimensions + dimension,
                passes=before.passes + 1,
                level=min(level, 1.0),
            )

    def level(self, client_id: int) -> float:
        """Return a client's noise level: 0 unless it is taken to be noisy."""
        if client_id not in self.noisy:
            return 0.0
        return self._members[client_id].level

    def state_dict(self) -> dict[str, Any]:
        """Return where it is, and what is known of each member."""
        return super().state_dict() | {
            "passed": self._passed,
            "asked": sorted(self._asked),
            "passed_before": self._passed_before,
            "members": [[i, *reported] for i, reported in sorted(self._members.items())],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
        super().load_state_dict(state)
        self._passed = state["passed"]
        self._asked = set(state["asked"])
        self._passed_before = state["passed_before"]
        self._members = {i: _Reported(*figures) for i, *figures in state["members"]}

    def _end_pass(self, server_round: int) -> None:
        """Split the members by the mean dimension of their answers."""
        self._passed += 1
        self._asked = set()
        if self._passed >= self._method.passes:
            self._passed_before = server_round
        ids = sorted(self._members)
        if len(ids) >= 2:
            means = [self._members[i].mean_dimension for i in ids]
            figures = torch.tensor(means, dtype=torch.float64)[:, None]
            self.noisy = noisy_of(ids, figures, self._method.seed, fits=1)

    def _stage(self, server_round: int) -> str:
        if self._passed_before is None:
            return PASS
        since = server_round - self._passed_before
        if since < self._method.fine_tuning:
            return FINE_TUNING
        return USUAL


class _Mixed(LocalTerm):
    """Mixes each batch with itself in another order, inputs and losses."""

    def __init__(self, model: nn.Module, alpha: float) -> None:
        super().__init__()
        self._model = model
        self._beta = torch.distributions.Beta(alpha, alpha)
        # The last batch's lambda, and the order in which others are mixed in.
        self._share = 1.0
        self._order = torch.zeros(0, dtype=torch.long)
        self._handle: Any = None
        self.loss_fn = self._loss

    def __enter__(self) -> _Mixed:
        def mix(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            inputs = args[0]
            self._share = float(self._beta.sample())
            self._order = torch.randperm(len(inputs)).to(inputs.device)
            return (self._share * inputs + (1 - self._share) * inputs[self._order],)

        self._handle = self._model.register_forward_pre_hook(mix)
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.remove()

    def _loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        loss = functional.cross_entropy(outputs, labels)
        loss_of_others = functional.cross_entropy(outputs, labels[self._order])
        return self._share * loss + (1 - self._share) * loss_of_others


@torch.no_grad()
def answers(model: nn.Module, inputs: Tensor) -> Tensor:
    """Return a model's outputs ``[n, C]``, on the CPU."""
    with module_mode(model, training=False):
        outputs = [model(batch).float().cpu() for batch in torch.split(inputs, _BATCH)]
    return torch.cat(outputs)


def corrected(labels: Tensor, probabilities: Tensor, rows: Tensor, confidence: float) -> Tensor:
    """Return labels in which some are replaced by what a model is sure of.

    Parameters
    ----------
    labels : Tensor
        ``[n]``; not changed.
    probabilities : Tensor
        ``[n, C]``: the model's.
    rows : Tensor
        ``[r]``: which may be replaced.
    confidence : float
        The least probability at which one is.
    """
    most, answer = probabilities[rows].max(dim=1)
    sure = most > confidence
    labels = labels.clone()
    labels[rows[sure]] = answer[sure]
    return labels


def intrinsic_dimensions(points: Tensor, neighbours: int) -> Tensor:
    r"""Return the local intrinsic dimension at each point, ``[n]``, float64, finite and >= 0.

    .. math:: \widehat{\mathrm{LID}}(x) = - \Bigl( \frac{1}{k} \sum_{i=1}^{k} \log
              \frac{r_i(x)}{r_k(x)} \Bigr)^{-1}

    with :math:`r_i` the distance of the i-th nearest other point. It is 0 where the k-th is at the
    same place, and where there are fewer than three points.

    Parameters
    ----------
    points : Tensor
        ``[n, f]``.
    neighbours : int
        k >= 2; all others where there are fewer.
    """
    k = min(neighbours, len(points) - 1)
    if k < 2:
        return torch.zeros(len(points), dtype=torch.float64)
    points = points.double()
    dimensions = []
    for rows in torch.split(points, _BATCH):
        distances = torch.cdist(rows, points, compute_mode="donot_use_mm_for_euclid_dist")
        nearest = distances.topk(k + 1, largest=False).values[:, 1:]  # Without the point itself.
        logs = (nearest / (nearest[:, -1:] + _EPSILON)).log().sum(dim=1)  # < 0
        dimensions.append(-k / logs)
    return torch.cat(dimensions)


def noise_level(losses: Tensor, seed: int) -> float:
    """Return the share of a client's examples in the component of the higher losses.

    Parameters
    ----------
    losses : Tensor
        ``[n]``, float64, finite: of each example, added up over the passes.
    seed : int
        Of the mixture.
    """
    if len(losses) < 2:
        return 0.0
    is_higher = in_higher(losses[:, None], seed, fits=1)
    return sum(is_higher) / len(losses)
