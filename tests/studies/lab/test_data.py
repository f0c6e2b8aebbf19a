from __future__ import annotations

import pytest

from fedif_studies.lab.data import find_data
from tests.studies.lab.small import make_cifar10_folder


@pytest.fixture
def image_folder(tmp_path):
    return make_cifar10_folder(tmp_path)


def test_cifar10_as_jpeg_files_is_found_and_called_so(image_folder):
    for data_dir in (image_folder, image_folder / "cifar10"):
        found, title = find_data("cifar10", str(data_dir))
        assert found == {"dataset": "image-folder", "data-dir": str(image_folder / "cifar10")}
        assert title == "CIFAR-10 (JPEG)"
