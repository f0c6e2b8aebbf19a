"""Where data sets come from, one file per kind."""

from fedif_flower.tasks.data.sources.digits import Digits
from fedif_flower.tasks.data.sources.image_folder import ImageFolder
from fedif_flower.tasks.data.sources.source import RawDataset, RawSplit, Source
from fedif_flower.tasks.data.sources.vision import CIFAR10, FashionMNIST

__all__ = [
    "CIFAR10",
    "Digits",
    "FashionMNIST",
    "ImageFolder",
    "RawDataset",
    "RawSplit",
    "Source",
]
