from __future__ import annotations

import os
import zipfile

import numpy as np
import pytest
import torch

from fedif_flower.foreign import require_plain_archive


def test_what_numpy_and_pytorch_write_is_read(tmp_path):
    np.savez(tmp_path / "arrays.npz", zeros=np.zeros(10_000), more=np.zeros((3, 4)))
    torch.save({"zeros": torch.zeros(10_000)}, tmp_path / "model.pt")
    (tmp_path / "text").write_text("no archive")
    for path in tmp_path.iterdir():
        require_plain_archive(path)


def test_an_archive_that_unpacks_to_more_than_it_has_is_refused(tmp_path):
    packed = tmp_path / "packed.npz"
    np.savez_compressed(packed, zeros=np.zeros(2**20))
    with pytest.raises(ValueError, match=f"it has {packed.stat().st_size} bytes and would unpack"):
        require_plain_archive(packed)
    # A model of PyTorch's, packed by somebody: torch.load would unpack it.
    torch.save({"zeros": torch.zeros(2**20)}, tmp_path / "model.pt")
    packing = zipfile.ZipFile(tmp_path / "again.pt", "w", zipfile.ZIP_DEFLATED)
    with zipfile.ZipFile(tmp_path / "model.pt") as plain, packing as again:
        for name in plain.namelist():
            again.writestr(name, plain.read(name))
    with pytest.raises(ValueError, match="would unpack to"):
        require_plain_archive(tmp_path / "again.pt")


def test_what_is_no_file_is_refused_at_once(tmp_path):
    """Who opens a pipe waits for somebody who writes to it."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="it is no regular file"):
        require_plain_archive(tmp_path / "pipe")
