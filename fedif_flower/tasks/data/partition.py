"""Partitions: training data among clients, by Dirichlet, and test data in the server's two sets."""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import math
import warnings
from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedif_flower.errors import ConfigError, DataError, is_count, require
from fedif_flower.seeding import numpy_generator
from fedif_flower.storage import (
    cache_errors,
    cache_root,
    content_key,
    exclusive_lock,
    write_atomically,
)

VALIDATION_FRACTION = 0.2  # Of the test split; the rest is the server's test set.
_EVEN = 100.0  # From this alpha on shares are nearly even: an error advises no larger alpha.


def dirichlet_partition(
    labels: Tensor | NDArray[np.integer[Any]] | Sequence[int],
    num_partitions: int,
    dirichlet_alpha: float = 1.0,
    seed: int = 0,
) -> list[NDArray[np.int64]]:
    r"""Divide examples among clients, class by class, in Dirichlet proportions.

    .. math:: (q_{1,k}, \dots, q_{K,k}) \sim \mathrm{Dir}(\alpha, \dots, \alpha)

    where client i gets the share :math:`q_{i,k}` of class k's examples. Flower's
    ``DirichletPartitioner`` draws the shares once. The result is stored in the cache, so that later
    processes only read it. Every client gets at least one example.

    Parameters
    ----------
    labels : Tensor, NDArray or sequence of int
        ``[n]``, the class of each example, an integer.
    num_partitions : int
        K, the number of clients, in [1, n].
    dirichlet_alpha : float
        :math:`\alpha`, > 0: the smaller it is, the fewer classes a client has.
    seed : int
        Seed of the draw, >= 0.

    Returns
    -------
    list of NDArray[np.int64]
        K disjoint arrays of indices into the labels, shuffled. Together they have every index.

    Raises
    ------
    ConfigError
        If labels are no integers, a parameter is out of its range, or no division is found in which
        each client has an example: :math:`\alpha` is too small, or there are hardly more examples
        than partitions.
    DataError
        If the cache cannot be written, or the stored result is damaged.

    References
    ----------
    Yurochkin et al., "Bayesian Nonparametric Federated Learning of Neural Networks", ICML 2019.
    """
    classes = _classes(labels)
    total = len(classes)
    fits = is_count(num_partitions, 1) and num_partitions <= total
    words = f"1 to {total}, as many as examples"
    require(fits, "num_partitions", num_partitions, words)
    fits = isinstance(dirichlet_alpha, Real) and 0 < float(dirichlet_alpha) < math.inf
    require(fits, "dirichlet_alpha", dirichlet_alpha, "a finite number > 0")
    alpha = float(dirichlet_alpha)
    require(is_count(seed), "seed", seed, "an integer >= 0")
    digest = hashlib.sha256(classes.tobytes()).hexdigest()
    # The key has the versions of both libraries, since either may change what a seed draws.
    versions = [importlib.metadata.version(package) for package in ("flwr-datasets", "numpy")]
    key = content_key([digest, num_partitions, alpha, seed, versions], 24)
    root = cache_root()
    path = root / f"partitions-{key}.npz"
    if not path.is_file():
        with cache_errors(root), exclusive_lock(root / "partitions.lock"):
            if not path.is_file():  # Another process may have drawn it.
                partitions = _draw(classes, num_partitions, alpha, seed)
                buffer = io.BytesIO()
                sizes = [len(partition) for partition in partitions]
                np.savez(buffer, indices=np.concatenate(partitions), sizes=sizes)
                write_atomically(path, buffer.getvalue())
    try:
        with np.load(path) as stored:  # It checks the CRC of both arrays.
            return np.split(stored["indices"], np.cumsum(stored["sizes"])[:-1])
    except Exception as error:
        raise DataError(f"{path} is damaged ({error}); remove it to have it drawn again") from error


def _classes(labels: Tensor | NDArray[np.integer[Any]] | Sequence[int]) -> NDArray[np.int64]:
    """Return labels as one int64 array ``[n]``.

    Raises
    ------
    ConfigError
        If they are not one-dimensional integers.
    """
    if isinstance(labels, Tensor):
        labels = labels.detach().cpu().numpy()
    array = np.asarray(labels)
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise ConfigError(
            f"labels of shape {array.shape} and type {array.dtype}; allowed: integers, one for "
            "each example"
        )
    return np.ascontiguousarray(array, dtype=np.int64)


def _draw(
    labels: NDArray[np.int64], num_partitions: int, alpha: float, seed: int
) -> list[NDArray[np.int64]]:
    """Draw each client's indices; raise ConfigError if no division gives each client an example."""
    # Imported here since it takes seconds, and only the first process needs it.
    from datasets import Dataset as HuggingFaceDataset
    from flwr_datasets.partitioner import DirichletPartitioner

    partitioner = DirichletPartitioner(
        num_partitions=num_partitions,
        partition_by="label",
        alpha=alpha,
        min_partition_size=1,  # Not more: with a small alpha some clients get very little.
        self_balancing=False,
        shuffle=True,
        seed=seed,
    )
    columns = {"label": labels.tolist(), "index": range(len(labels))}
    partitioner.dataset = HuggingFaceDataset.from_dict(columns)
    try:
        with warnings.catch_warnings():  # The partitioner warns at each of its eleven attempts.
            warnings.simplefilter("ignore")
            return [
                np.array(partitioner.load_partition(i)[:]["index"], dtype=np.int64)
                for i in range(num_partitions)
            ]
    except ValueError as error:
        # With a large alpha shares are nearly equal. If even these are too small, only fewer
        # clients help.
        allowed = (
            "fewer clients" if alpha >= _EVEN else "a larger dirichlet-alpha, or fewer clients"
        )
        raise ConfigError(
            f"dirichlet-alpha = {alpha}: found no division of {len(labels)} examples among "
            f"{num_partitions} clients in which each client has at least one example; allowed: "
            f"{allowed}"
        ) from error


def split_test(num_test: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Divide the test split at random into the server's validation set and its test set.

    The validation set gets a fifth of the images. Labels play no part in the division. Each set
    gets at least one image.

    Parameters
    ----------
    num_test : int
        Number of images in the test split, >= 2.
    seed : int
        Seed of the division, >= 0.

    Returns
    -------
    tuple of two NDArray[np.int64]
        Sorted indices into the test split: first of the validation set, then of the test set.

    Raises
    ------
    DataError
        If there are fewer than two images.
    """
    if num_test < 2:
        raise DataError(
            f"the test split has {num_test} image(s); allowed: 2 or more, as validation and test "
            "need at least one each"
        )
    order = numpy_generator("test-split", seed).permutation(num_test)
    num_validation = min(max(round(VALIDATION_FRACTION * num_test), 1), num_test - 1)
    return np.sort(order[:num_validation]), np.sort(order[num_validation:])
