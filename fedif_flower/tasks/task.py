"""What a federation is about, in one object: model, data, loss, metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from fedif_flower.errors import ConfigError, DataError, FedIFError, ValuationError
from fedif_flower.seeding import derive_seed
from fedif_flower.tasks.batches import tensor_pair
from fedif_flower.tasks.modules import seeded_randomness
from fedif_flower.tasks.structures import as_tensors, describe

if TYPE_CHECKING:
    from fedif_flower.tasks.config import TrainingConfig

Data = Tensor | Mapping[str, Any] | tuple[Any, ...] | Dataset[Any] | Iterable[Any]
LossFunction = Callable[[Any, Any], Tensor]
BatchLoss = Callable[[nn.Module, Any], tuple[Tensor, float | Tensor]]
ScoreFunction = Callable[[Any, Any], Tensor | float]
LocalTraining = Callable[[nn.Module, Any, "TrainingConfig"], float]

# "contradicted": the share of held-out labels that a model is sure are others has such a column.
RESERVED_METRICS = ("loss", "accuracy", "score", "contradicted")


def metric_key(name: str) -> str:
    """Return a metric's name as columns have it: ``mean_absolute_error``."""
    return "_".join(name.replace("-", " ").lower().split())


@dataclass(frozen=True)
class Metric:
    """A figure by which models are compared, beside the loss.

    Parameters
    ----------
    name : str
        What results call it: ``"mean absolute error"`` has the columns
        ``test_mean_absolute_error`` and ``validation_mean_absolute_error``.
    function : callable
        ``function(outputs, targets)`` -> number, given those of all examples of a split at once,
        on the CPU: an AUC, an F1 score or an R² as well as a mean. In a task with ``batch_loss``,
        ``function(model, batch)`` -> the mean over the batch; batches count by their sizes. What
        holds for outputs that are too large: see ``score`` of
        :class:`~fedif_flower.valuation.validation.Validation`.
    higher_is_better : bool
        ``False`` for errors.
    """

    name: str
    function: ScoreFunction
    higher_is_better: bool = True

    def __post_init__(self) -> None:
        """Raise ConfigError for a name that no column can have."""
        if not self.key.replace("_", "").isalnum() or self.key in RESERVED_METRICS:
            raise ConfigError(
                f"metric {self.name!r}; allowed: letters, digits and spaces, and none of "
                f"{', '.join(RESERVED_METRICS)}"
            )

    @property
    def key(self) -> str:
        """Its name as columns have it."""
        return metric_key(self.name)


@dataclass(frozen=True)
class Site:
    """Whoever asks for data: the server, or a client.

    Attributes
    ----------
    seed : int
        The run's seed, for what is drawn at random.
    data_dir : Path, optional
        Where data lie: the run config's ``data-dir``; on a node that has a ``data-dir`` of its
        own, that.
    """

    seed: int = 0
    data_dir: Path | None = None


@dataclass(frozen=True)
class ClientSite(Site):
    """A client that asks for its training data.

    Attributes
    ----------
    partition_id : int
        Which client it is, from 0.
    num_partitions : int, optional
        How many clients share one data set, of which this one has a part; ``None``: the node has
        data of its own, in ``data_dir``.
    """

    partition_id: int = 0
    num_partitions: int | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Task:
    """What a federation is about. Server and clients have the same task.

    Each function is called with torch's random state seeded by the run.

    Parameters
    ----------
    name : str
        What results call it.
    model : callable
        ``model()`` -> the untrained module.
    client_data : callable
        ``client_data(site)`` -> a client's training data, for its
        :class:`~fedif_flower.tasks.task.ClientSite`: tensors or NumPy arrays ``(inputs, targets)``,
        a Dataset of examples, a DataLoader, or anything else that yields batches, such as a list of
        them.
    validation_data, test_data : callable
        ``validation_data(site)`` -> the server's data, for its
        :class:`~fedif_flower.tasks.task.Site`. The validation split judges clients; the test split
        only measures the model.
    loss : callable, optional
        ``loss(model(inputs), targets)`` -> scalar, the mean over the batch. In a batch of more
        than two, the last are the targets. Default: cross-entropy, for two classes or more. Class
        weights and targets to ignore: see :class:`~fedif_flower.valuation.validation.Validation`.
    batch_loss : callable, optional
        In place of ``loss``, for batches of any kind: ``batch_loss(model, batch)`` -> scalar mean,
        and what that divides by: the size of the batch, or a sum of weights.
    metrics : sequence of Metric
        The first is what results show first, and what runs are compared by. Accuracy needs no
        mention: it is taken wherever ``loss`` meets outputs ``[n, classes]`` and integer targets
        ``[n]``, and comes first where there are no metrics.
    train : callable, optional
        In place of SGD on the loss: ``train(model, data, training)`` trains the model in place
        and returns its mean training loss; ``training`` holds the run config's local epochs, batch
        size, learning rate and momentum.
    num_classes : int, optional
        Of class targets, which label noise needs.
    input_range : tuple of two floats, optional
        Least and greatest value of float inputs, which adversarial samples need.
    transform : callable, optional
        From the inputs of all these data to what the model takes: a normalisation, say. Attacks
        change inputs before it. The data are then pairs of tensors.
    facts : mapping of str
        What the server tells every client about its data, JSON-able.
    num_train : int, optional
        Training examples of all clients, where that is known: no client has more.
    fingerprint : str
        Changes whenever the data do. Default: a hash of the server's data.
    remarks : sequence of str
        What a reader of the report has to know of the data, as of files that were passed over.

    Raises
    ------
    ConfigError
        If ``loss`` and ``batch_loss`` are both given, two metrics have one name, or ``model`` is a
        model that is made already.
    """

    name: str
    model: Callable[[], nn.Module]
    client_data: Callable[[ClientSite], Data]
    validation_data: Callable[[Site], Data]
    test_data: Callable[[Site], Data]
    loss: LossFunction | None = None
    batch_loss: BatchLoss | None = None
    metrics: Sequence[Metric] = ()
    train: LocalTraining | None = None
    num_classes: int | None = None
    input_range: tuple[float, float] | None = None
    transform: Callable[[Tensor], Tensor] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    num_train: int | None = None
    fingerprint: str = ""
    remarks: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        if self.loss is not None and self.batch_loss is not None:
            raise ConfigError(
                f"task {self.name!r}: loss and batch_loss are both given; allowed: one of them"
            )
        if isinstance(self.model, nn.Module):
            raise ConfigError(
                f"task {self.name!r}: model is a {type(self.model).__name__} that is made already; "
                "allowed: a function that makes one, whose weights then follow from the run's seed"
            )
        keys = [metric.key for metric in self.metrics]
        for key in sorted(keys):
            if keys.count(key) > 1:
                raise ConfigError(f"task {self.name!r}: two metrics are called {key!r}")

    @property
    def pair_loss(self) -> LossFunction:
        """The loss of outputs and targets."""
        return self.loss or functional.cross_entropy

    def build_model(self, seed: int) -> nn.Module:
        """Return an untrained model whose weights depend on ``seed`` alone.

        Raises
        ------
        ConfigError
            If ``model()`` fails, or returns no module.
        """
        model = self._call("model", seed)
        if not isinstance(model, nn.Module):
            raise ConfigError(
                f"task {self.name!r}: model() returned {type(model).__name__}; expected a "
                "torch.nn.Module"
            )
        return model

    def load(self, what: str, site: Site) -> Data:
        """Return ``client_data``, ``validation_data`` or ``test_data`` of a site.

        Raises
        ------
        DataError
            If the function fails, or returns nothing, or NumPy arrays that hold no numbers.
        """
        data: Data | None = self._call(what, site.seed, site)
        if data is None:
            raise DataError(f"task {self.name!r}: {what} returned nothing; expected data")
        if not isinstance(data, np.ndarray | Mapping | tuple):
            return data
        try:
            return cast("Data", as_tensors(data))
        except ValuationError as error:
            raise DataError(f"task {self.name!r}: {what}: {error}") from error

    def transformed(self, data: Data) -> Data:
        """Return data as the model takes them.

        Raises
        ------
        DataError
            If there is a ``transform``, and the data are no pair of tensors.
        """
        if self.transform is None:
            return data
        pair = tensor_pair(data)
        if pair is None:
            raise DataError(
                f"task {self.name!r}: transform takes tensors of inputs; the data are "
                f"{describe(data)}: transform them there"
            )
        return self.transform(pair[0]), pair[1]

    def in_unit_range(self, inputs: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Return inputs in [0, 1], as attacks see them, and the way from there to the model.

        Integers stay as they are: a transform may tell them from floats, as torchvision's do.
        """
        transform = self.transform or nn.Identity()
        if self.input_range is None or tuple(self.input_range) == (0.0, 1.0):
            return inputs, transform
        if not inputs.is_floating_point():
            return inputs, transform
        low, high = self.input_range

        def to_model(scaled: Tensor) -> Tensor:
            return transform(low + scaled * (high - low))

        return (inputs - low) / (high - low), to_model

    def _call(self, what: str, seed: int, *arguments: Site) -> Any:
        """Call one of the user's functions with the random state that the run prescribes."""
        try:
            with seeded_randomness(derive_seed(what, seed), torch.device("cpu")):
                return getattr(self, what)(*arguments)
        except (FedIFError, ValuationError):
            raise
        except Exception as error:
            kind = ConfigError if what == "model" else DataError
            raise kind(
                f"task {self.name!r}: {what} failed: {type(error).__name__}: {error}"
            ) from error
