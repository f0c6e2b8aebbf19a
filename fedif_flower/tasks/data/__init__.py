"""Data: sets by name in a shared cache, partitions, the server's split, and pixels."""

from fedif_flower.tasks.data.cache import Dataset, Split
from fedif_flower.tasks.data.datasets import DATASETS, load_dataset
from fedif_flower.tasks.data.partition import dirichlet_partition, split_test
from fedif_flower.tasks.data.transforms import NORMALIZATIONS, Normalization, to_pixels

__all__ = [
    "DATASETS",
    "NORMALIZATIONS",
    "Dataset",
    "Normalization",
    "Split",
    "dirichlet_partition",
    "load_dataset",
    "split_test",
    "to_pixels",
]
