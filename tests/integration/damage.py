"""A cache with a file in it that a client warns of, and makes again."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedif_flower.tasks.data import dirichlet_partition, load_dataset


def damage_partitions(folder: Path, num_clients: int) -> Path:
    """Make a cache of the digits in a folder, its partitions cut off, and return the folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        dirichlet_partition(load_dataset("digits", ""), num_clients, 1.0, 0)
    [partitions] = folder.rglob("partitions-*.npz")
    partitions.write_bytes(b"cut off")
    return folder
