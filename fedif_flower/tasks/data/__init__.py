"""Data: sets by name in a shared cache, partitions, the server's split, pixels and export."""

from fedif_flower.tasks.data.datasets import DATASETS, Dataset, Split, load_dataset
from fedif_flower.tasks.data.export import export_partitions
from fedif_flower.tasks.data.partition import dirichlet_partition, split_test
from fedif_flower.tasks.data.transforms import NORMALIZATIONS, Normalization, normalize, to_pixels

__all__ = [
    "DATASETS",
    "NORMALIZATIONS",
    "Dataset",
    "Normalization",
    "Split",
    "dirichlet_partition",
    "export_partitions",
    "load_dataset",
    "normalize",
    "split_test",
    "to_pixels",
]
