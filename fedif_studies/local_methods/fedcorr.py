"""FedCorr [Xu et al., 2022]: finds clients with wrong labels by their answers, and corrects them.

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
from fedif_flower.local_methods import Guide, Instructions, LocalMethod, LocalRound, LocalTerm, Turn
from fedif_flower.settings import Setting
from fedif_flower.tasks.batches import tensor_pair
from fedif_flower.tasks.modules import module_mode
from fedif_flower.tasks.task import Data, Task
from fedif_studies.local_methods.classifier import classifier_misfit
from fedif_studies.local_methods.mixture import in_higher, noisy_of

FIGURES = "dimension-and-level"  # The name of a client's report.
# The names of the stages, as the server tells them to clients.
PASS = "pass"
FINE_TUNING = "fine-tuning"
USUAL = "usual"
# Keys of what the server tells a client: the stage, and the client's noise level.
_STAGE = "stage"
_LEVEL = "level"
# Keys of a client's memory.
_LABELS = "fedcorr-labels"  # The labels as they are now.
_OWN_LABELS = "fedcorr-own-labels"  # The labels that its data have.
_LOSSES = "fedcorr-losses"  # Each example's loss in the last pass.
_DONE = "fedcorr-done"  # Is there once labels were corrected after the fine-tuning.
_BATCH = 256
_EPSILON = 1e-8  # Keeps the sum of logarithms below 0 if all distances are equal.


@dataclass(frozen=True)
class FedCorr(CheckedFields, LocalMethod):
    r"""Members with wrong labels, found by their answers' dimension, correct them by the model.

    There are three stages. In ``passes`` over all members, noisy members are found
    (:func:`intrinsic_dimensions`), the share of their wrong labels is estimated
    (:func:`noise_level`), and labels with the highest losses are corrected. In ``fine_tuning``
    rounds, only clean members take part. Usual rounds follow; when a noisy member trains again, it
    first corrects all labels that the global model doubts. In the passes, a member's loss is

    .. math::
        \lambda \operatorname{CE}(f(\tilde x), y) + (1 - \lambda) \operatorname{CE}(f(\tilde x), y')
        + \beta \hat\mu \lVert w - w_{t-1} \rVert^2, \qquad
        \tilde x = \lambda x + (1 - \lambda) x', \quad
        \lambda \sim \operatorname{Beta}(\alpha, \alpha)

    with :math:`(x', y')` another example of the batch, :math:`\hat\mu` the member's noise level, w
    the member's parameters, and :math:`w_{t-1}` those that it received.

    Parameters
    ----------
    passes : int
        The number of passes over all members, >= 1.
    fine_tuning : int
        The number of rounds of fine-tuning, >= 0.
    relabelled : float
        The share, in [0, 1], of the labels estimated to be wrong that a pass may correct.
    confidence : float
        A label is corrected only to a class that has a larger probability than this, in [0, 1], by
        the global model.
    clean_level : float
        Members with at most this noise level take part in the fine-tuning, in [0, 1].
    mixup : float
        :math:`\alpha` >= 0; with 0, examples are not mixed.
    proximal : float
        :math:`\beta` >= 0.
    neighbours : int
        The number of each answer's neighbours that its dimension is estimated from, >= 2.
    num_classes : int
        C >= 2; in a run config, the task sets it.
    seed : int
        The seed of the Gaussian mixtures.
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
        """Return what a task lacks: it has to be a classifier, on data in a fixed order."""
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
        """Return the server's half, which leads through the stages."""
        return FedCorrGuide(self)

    def examples(self, local: LocalRound) -> Any:
        """Return the examples with their present labels, corrected first if the stage says so."""
        pair = tensor_pair(local.data)
        assert pair is not None  # misfit() has checked this.
        inputs, own_labels = pair
        own_labels_now = own_labels.cpu()
        own_labels_before = local.memory.get(_OWN_LABELS)
        # If the data are not those of the last round, the memory of single examples is void.
        if own_labels_before is None or not torch.equal(own_labels_before, own_labels_now):
            local.memory[_OWN_LABELS] = own_labels_now
            local.memory[_LABELS] = own_labels_now
            local.memory[_LOSSES] = torch.zeros(len(own_labels), dtype=torch.float64)
            local.memory.pop(_DONE, None)
        labels = local.memory[_LABELS]
        level = float(local.instructions.get(_LEVEL, 0.0))
        stage = local.instructions.get(_STAGE)
        if level and stage != FINE_TUNING and _DONE not in local.memory:
            if stage == PASS:
                count = int(len(labels) * level * self.relabelled)
                rows = local.memory[_LOSSES].argsort(descending=True)[:count]
            else:
                # Once, after the fine-tuning, any label may be corrected.
                rows = torch.arange(len(labels))
                local.memory[_DONE] = torch.ones(1)
            probabilities = answers(local.model, inputs).softmax(dim=1)  # [n, C]
            labels = corrected(labels, probabilities, rows, self.confidence)
        local.memory[_LABELS] = labels
        return inputs, labels.to(own_labels)

    def term(self, local: LocalRound) -> LocalTerm:
        """Return the term of a pass: mixed examples, and a proximal term; else an empty one."""
        if local.instructions.get(_STAGE) != PASS:
            return LocalTerm()
        term = _Mixed(local.model, self.mixup) if self.mixup else LocalTerm()
        # A proximal term has mu / 2 times the squared distance; FedCorr's term lacks the half.
        term.proximal_mu = 2 * self.proximal * float(local.instructions.get(_LEVEL, 0.0))
        return term

    def finish(self, local: LocalRound, term: LocalTerm, sent: Tensor) -> None:  # noqa: ARG002
        """In a pass, report the mean dimension of the client's answers, and its noise level."""
        if local.instructions.get(_STAGE) != PASS:
            return
        inputs, labels = local.data
        outputs = answers(local.model, inputs)
        losses = functional.cross_entropy(outputs, labels.cpu(), reduction="none").double()
        # Those of this pass alone: of a corrected label, the wrong label's loss must not count.
        local.memory[_LOSSES] = losses.nan_to_num(posinf=0.0)
        dimensions = intrinsic_dimensions(outputs.softmax(dim=1), self.neighbours)
        level = noise_level(local.memory[_LOSSES], self.seed)
        term.report[FIGURES] = torch.tensor([float(dimensions.mean()), level]).double()


class _Reported(NamedTuple):
    """A member's reports: the sum of its dimensions, their number, and its last noise level."""

    dimensions: float = 0.0
    passes: int = 0
    level: float = 0.0

    @property
    def mean_dimension(self) -> float:
        return self.dimensions / self.passes


class FedCorrGuide(Guide):
    """Leads through the stages: splits the members after each pass, and tells clients the stage."""

    def __init__(self, method: FedCorr) -> None:
        super().__init__()
        self._method = method
        self._passed = 0  # The number of passes that are over.
        self._asked: set[int] = set()  # The members that were asked in this pass.
        self._passed_before: int | None = None  # The first round after the passes.
        self._members: dict[int, _Reported] = {}

    def choose_members(self, members: Sequence[int], server_round: int) -> Turn:
        """Return the members who were not asked in this pass, or in the fine-tuning, clean ones."""
        if self._passed_before is None and members and not set(members) - self._asked:
            self._end_pass(server_round)
        if self._passed_before is None:
            allowed = [i for i in members if i not in self._asked]
        elif self._stage(server_round) == FINE_TUNING:
            allowed = [i for i in members if self.level(i) <= self._method.clean_level]
        else:
            allowed = list(members)
        return Turn(allowed or members)

    def note_asked(self, client_ids: Sequence[int], server_round: int) -> None:  # noqa: ARG002
        """Take note of the members that are asked in a pass."""
        if self._passed_before is None:
            self._asked.update(client_ids)

    def instruct(self, client_id: int, server_round: int) -> Instructions:
        """Return the stage, and the client's noise level by the last pass."""
        return {_STAGE: self._stage(server_round), _LEVEL: self.level(client_id)}

    def report_lengths(self, server_round: int) -> Mapping[str, int]:
        """Return that replies have to report two figures in a pass: dimension and level."""
        return {FIGURES: 2} if self._stage(server_round) == PASS else {}

    def take(
        self, server_round: int, client_ids: Sequence[int], reports: Mapping[str, Tensor]
    ) -> None:
        """Add up the dimensions that clients report in a pass, and keep their last levels."""
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
        """Return a client's noise level; 0 if its labels are not taken to be wrong."""
        if client_id not in self.noisy:
            return 0.0
        return self._members[client_id].level

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint keeps: the stage, and each member's reports."""
        return super().state_dict() | {
            "passed": self._passed,
            "asked": sorted(self._asked),
            "passed_before": self._passed_before,
            "members": [[i, *reported] for i, reported in sorted(self._members.items())],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        super().load_state_dict(state)
        self._passed = state["passed"]
        self._asked = set(state["asked"])
        self._passed_before = state["passed_before"]
        self._members = {i: _Reported(*figures) for i, *figures in state["members"]}

    def _end_pass(self, server_round: int) -> None:
        """End a pass: split the members into noisy and clean ones by their mean dimension."""
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
    """Mixup: mixes each batch's inputs and losses with those of the batch in another order."""

    def __init__(self, model: nn.Module, alpha: float) -> None:
        super().__init__()
        self._model = model
        self._beta = torch.distributions.Beta(alpha, alpha)
        # The last batch's lambda, and the order in which the batch is mixed with itself.
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
    """Return labels of which some are replaced by the most probable class of a model.

    Parameters
    ----------
    labels : Tensor
        ``[n]``: the labels; the tensor is not changed.
    probabilities : Tensor
        ``[n, C]``: the model's probabilities.
    rows : Tensor
        ``[r]``: the rows of labels that may be replaced.
    confidence : float
        A label is replaced if the most probable class has a larger probability than this.
    """
    most, answer = probabilities[rows].max(dim=1)
    sure = most > confidence
    labels = labels.clone()
    labels[rows[sure]] = answer[sure]
    return labels


def intrinsic_dimensions(points: Tensor, neighbours: int) -> Tensor:
    r"""Return an estimate of the local intrinsic dimension at each point, ``[n]``.

    .. math:: \widehat{\mathrm{LID}}(x) = - \Bigl( \frac{1}{k} \sum_{i=1}^{k} \log
              \frac{r_i(x)}{r_k(x)} \Bigr)^{-1}

    with :math:`r_i` the distance of the i-th nearest other point.

    Parameters
    ----------
    points : Tensor
        ``[n, f]``.
    neighbours : int
        k >= 2; if there are fewer other points, k is their number.

    Returns
    -------
    Tensor
        ``[n]``, float64, finite and >= 0; 0 if another point is at the same place, or if there are
        fewer than three points.
    """
    k = min(neighbours, len(points) - 1)
    if k < 2:
        return torch.zeros(len(points), dtype=torch.float64)
    points = points.double()
    dimensions = []
    for rows in torch.split(points, _BATCH):
        distances = torch.cdist(rows, points, compute_mode="donot_use_mm_for_euclid_dist")
        nearest = distances.topk(k + 1, largest=False).values[:, 1:]  # Without the point itself.
        logs = (nearest / (nearest[:, -1:] + _EPSILON)).log().sum(dim=1)  # [n], < 0
        dimensions.append(-k / logs)
    return torch.cat(dimensions)


def noise_level(losses: Tensor, seed: int) -> float:
    """Return the share of a client's examples that are in the component with the higher losses.

    Parameters
    ----------
    losses : Tensor
        ``[n]``, float64, finite: each example's loss.
    seed : int
        The seed of the Gaussian mixture.
    """
    if len(losses) < 2:
        return 0.0
    is_higher = in_higher(losses[:, None], seed, fits=1)
    return sum(is_higher) / len(losses)
