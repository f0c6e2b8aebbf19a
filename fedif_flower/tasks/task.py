"""The task that a federation learns, in one object: model, data, loss, metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from fedif_flower.errors import (
    ConfigError,
    DataError,
    FedIFError,
    ValuationError,
    is_count,
    require,
)
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

# Results have columns of these names already. "contradicted" is the share of held-out labels that
# the model is sure are wrong.
RESERVED_METRICS = ("loss", "accuracy", "score", "contradicted")


def metric_key(name: str) -> str:
    """Return a metric's name as it stands in column names, such as ``mean_absolute_error``."""
    return "_".join(name.replace("-", " ").lower().split())


@dataclass(frozen=True)
class Metric:
    """A figure by which models are compared, beside the loss.

    Parameters
    ----------
    name : str
        The name in results: ``"mean absolute error"`` has the columns
        ``test_mean_absolute_error`` and ``validation_mean_absolute_error``.
    function : callable
        ``function(outputs, targets)`` -> number. It gets the outputs and targets of all examples of
        a split at once, on the CPU, so it need not be a mean: it may be an AUC, an F1 score or an
        R². In a task with ``batch_loss`` it is ``function(model, batch)`` -> the mean over the
        batch; batches are weighted by their sizes. For outputs too large to keep, see ``score`` of
        :class:`~fedif_flower.valuation.validation.Validation`.
    higher_is_better : bool
        ``False`` for errors.
    """

    name: str
    function: ScoreFunction
    higher_is_better: bool = True

    def __post_init__(self) -> None:
        """Raise ConfigError for a name that no column can have, or what is no function."""
        require(isinstance(self.name, str), "a metric's name", self.name, "a text")
        is_function = callable(self.function)
        require(is_function, f"the function of metric {self.name!r}", self.function, "a function")
        if not self.key.replace("_", "").isalnum() or self.key in RESERVED_METRICS:
            raise ConfigError(
                f"metric {self.name!r}; allowed: letters, digits and spaces, and none of "
                f"{', '.join(RESERVED_METRICS)}"
            )

    @property
    def key(self) -> str:
        """The metric's name as it stands in column names."""
        return metric_key(self.name)


@dataclass(frozen=True)
class Site:
    """The place for which a task loads data: the server or a client.

    Attributes
    ----------
    seed : int
        The run's seed, for data that are drawn at random.
    data_dir : Path, optional
        The folder of the data: the ``data-dir`` of the node config if the node has one, otherwise
        that of the run config.
    """

    seed: int = 0
    data_dir: Path | None = None


@dataclass(frozen=True)
class ClientSite(Site):
    """The client for which a task loads training data.

    Attributes
    ----------
    partition_id : int
        Which client it is, from 0.
    num_partitions : int, optional
        How many clients share one data set, if this client has a part of a shared one; ``None``:
        the node has data of its own, in ``data_dir``.
    """

    partition_id: int = 0
    num_partitions: int | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Task:
    """The task that a federation learns. Server and clients have the same task.

    Each function for a model or data is called with torch's random state seeded by the run.

    Parameters
    ----------
    name : str
        The task's name in results.
    model : callable
        ``model()`` -> the untrained module.
    client_data : callable
        ``client_data(site)`` -> the training data of a client, given its
        :class:`~fedif_flower.tasks.task.ClientSite`: tensors or NumPy arrays ``(inputs, targets)``,
        a Dataset of examples, a DataLoader, or any other iterable of batches, such as a list.
    validation_data, test_data : callable
        ``validation_data(site)`` -> the server's data, given its
        :class:`~fedif_flower.tasks.task.Site`. The validation split judges clients; the test split
        only measures the model.
    loss : callable, optional
        ``loss(model(inputs), targets)`` -> scalar, the mean over the batch. In a batch of more
        than two items, the last item is the targets and the others are the model's arguments.
        Default: cross-entropy, for two classes or more. For class weights and targets to ignore,
        see :class:`~fedif_flower.valuation.validation.Validation`.
    batch_loss : callable, optional
        Replaces ``loss``, for batches of any kind: ``batch_loss(model, batch)`` -> a scalar mean,
        and the number that the mean divides by: the size of the batch, or a sum of weights.
    metrics : sequence of Metric
        Results show the first one first, and runs are compared by it. Accuracy need not be named:
        it is measured whenever ``loss`` gets outputs ``[n, classes]`` and integer targets ``[n]``,
        and it comes first if there are no metrics.
    train : callable, optional
        Replaces SGD on the loss: ``train(model, data, training)`` trains the model in place and
        returns its mean training loss; ``training`` holds the run config's local epochs, batch
        size, learning rate and momentum.
    num_classes : int, optional
        Number of classes of the targets, >= 2. Label noise needs it.
    input_range : tuple of two floats, optional
        Least and greatest value of float inputs, the first one smaller. Adversarial samples need
        it.
    transform : callable, optional
        Turns the inputs of all these data into the model's inputs, by a normalisation for example.
        Attacks change inputs before it. With a transform all data are pairs of tensors.
    facts : mapping of str to object
        What the server tells every client about its data; JSON must be able to hold it.
    num_train : int, optional
        Number of training examples of all clients together, if it is known. A client that reports
        more is refused.
    fingerprint : str
        A text that changes whenever the data do. Default: a hash of the server's data.
    remarks : sequence of str
        What a reader of the report has to know about the data, such as which files were not read.

    Raises
    ------
    ConfigError
        If ``loss`` and ``batch_loss`` are both given, two metrics have the same name, ``model`` is
        a module instead of a function that makes one, or another argument is out of its range or
        of a wrong type.
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
        """Raise ConfigError if parameters contradict each other, or one cannot be used."""
        if self.loss is not None and self.batch_loss is not None:
            raise ConfigError(
                f"task {self.name!r}: loss and batch_loss are both given; allowed: one of them"
            )
        if isinstance(self.model, nn.Module):
            raise ConfigError(
                f"task {self.name!r}: model is a {type(self.model).__name__} that is made already; "
                "allowed: a function that makes one, whose weights then follow from the run's seed"
            )
        self._require_functions()
        self._require_numbers()
        require(isinstance(self.metrics, Sequence), self._key("metrics"), self.metrics, "a list")
        for metric in self.metrics:
            require(isinstance(metric, Metric), self._key("metrics"), metric, "a Metric each")
        keys = [metric.key for metric in self.metrics]
        for key in sorted(keys):
            if keys.count(key) > 1:
                raise ConfigError(f"task {self.name!r}: two metrics are called {key!r}")

    def _key(self, name: str) -> str:
        """Return what an error calls a parameter."""
        return f"task {self.name!r}: {name}"

    def _require_functions(self) -> None:
        """Raise ConfigError for data, or anything else, in the place of a function."""
        for name in ("model", "client_data", "validation_data", "test_data"):
            value = getattr(self, name)
            require(callable(value), self._key(name), value, "a function")
        for name in ("loss", "batch_loss", "train", "transform"):
            value = getattr(self, name)
            require(value is None or callable(value), self._key(name), value, "a function")

    def _require_numbers(self) -> None:
        """Raise ConfigError if ``num_classes`` or ``input_range`` is out of range."""
        classes = self.num_classes
        fits = classes is None or is_count(classes, 2)
        require(fits, self._key("num_classes"), classes, "an integer >= 2")
        if self.input_range is None:
            return
        allowed = "two numbers, the first one smaller"
        is_pair = isinstance(self.input_range, Sequence) and len(self.input_range) == 2
        are_numbers = is_pair and all(isinstance(value, Real) for value in self.input_range)
        fits = are_numbers and self.input_range[0] < self.input_range[1]
        require(fits, self._key("input_range"), self.input_range, allowed)

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
        """Return a site's data, with tensors in place of NumPy arrays.

        Parameters
        ----------
        what : str
            ``"client_data"``, ``"validation_data"`` or ``"test_data"``.
        site : Site
            The server or the client.

        Raises
        ------
        DataError
            If the function fails, returns ``None``, or returns NumPy arrays that hold no numbers.
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
        """Return data with the inputs that the model takes: ``transform`` is applied, if any.

        Raises
        ------
        DataError
            If there is a ``transform``, and the data are not a pair of tensors.
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
        """Return inputs scaled to [0, 1], and a function from there to the model's inputs.

        Attacks change the scaled inputs. Inputs stay as they are without an ``input_range``, and if
        they are integers: a transform may treat integers otherwise than floats, as torchvision's
        do.

        Parameters
        ----------
        inputs : Tensor
            Inputs before ``transform``.

        Returns
        -------
        tuple of Tensor and callable
            The scaled inputs, and the function that scales back and applies ``transform``.
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
        """Call one of the user's functions with torch's random state seeded by the run.

        Raises
        ------
        ConfigError, DataError
            If the function fails: ConfigError for ``model``, DataError for data.
        """
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
