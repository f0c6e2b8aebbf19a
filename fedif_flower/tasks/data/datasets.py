"""Data sets by name, as read-only arrays that all processes of a machine share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from fedif_flower.errors import ConfigError, DataError
from fedif_flower.storage import cache_root
from fedif_flower.tasks.data.cache import Dataset, open_prepared
from fedif_flower.tasks.data.sources import CIFAR10, Digits, FashionMNIST, ImageFolder, Source

# One line per data set: its name and the class that knows where it comes from.
DATASETS: Mapping[str, Callable[[str, Path], Source]] = MappingProxyType(
    {
        "digits": Digits,
        "fashion-mnist": FashionMNIST,
        "cifar10": CIFAR10,
        "image-folder": ImageFolder,
    }
)


def load_dataset(
    name: str,
    data_dir: str | Path = "",
    *,
    cache_dir: str | Path | None = None,
    verify: bool = False,
    require_test: bool = True,
) -> Dataset:
    """Open a data set; the first time on a machine it is prepared (and downloaded, if need be).

    Parameters
    ----------
    name : str
        A key of ``DATASETS``.
    data_dir : str or Path
        Where its files are: unused for ``digits``, required for ``image-folder``; otherwise the
        root that torchvision reads from, or downloads to when its files are not there.
        ``""``: downloads go to the cache. It may be read-only.
    cache_dir : str or Path, optional
        Instead of ``$XDG_CACHE_HOME`` or ``~/.cache``.
    verify : bool
        Compare the prepared files with their checksums first.
    require_test : bool
        Whether a data set without test images is an error; a client needs none.

    Raises
    ------
    ConfigError
        If the name is unknown, or ``data_dir`` is needed and empty.
    DataError
        If the data are missing, unreadable or inconsistent, or the cache cannot be written.
    """
    if name not in DATASETS:
        raise ConfigError(f"dataset = {name!r}; allowed: {', '.join(DATASETS)}")
    root = cache_root(cache_dir)
    source = DATASETS[name](str(data_dir), root)
    source.fetch()
    if require_test and not source.has_test():
        raise DataError(f"no test images in {Path(data_dir).expanduser().resolve() / 'test'}")
    return open_prepared(name, source, root, verify=verify)
