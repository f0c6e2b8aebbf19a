"""What ``from fedif_flower import ...`` finds, when it runs and for a type checker."""

from __future__ import annotations

import subprocess
import sys

import pytest

import fedif_flower
from fedif_flower.server.setup import Pace


def test_every_public_name_is_there_and_no_other():
    assert "FedIF" in fedif_flower.__all__
    for name in fedif_flower.__all__:
        assert getattr(fedif_flower, name).__name__ == name
    assert fedif_flower.Pace is Pace
    with pytest.raises(ImportError, match="Bogus"):
        from fedif_flower import Bogus  # noqa: F401


@pytest.mark.all
def test_a_type_checker_knows_the_public_names_alone(tmp_path):
    names = ", ".join(fedif_flower.__all__)
    wrong = ("Bogus", "fltrust_coefficients")
    lines = [f"from fedif_flower import {names}", *(f"from fedif_flower import {n}" for n in wrong)]
    (tmp_path / "user.py").write_text("\n".join(lines))
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", str(tmp_path / "user.py")],
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [line for line in checked.stdout.splitlines() if "error:" in line]
    assert [name for name in wrong if any(f'"{name}"' in line for line in errors)] == list(wrong)
    assert len(errors) == len(wrong), checked.stdout
