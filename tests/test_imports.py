"""Importing the library loads nothing that only some of its users need."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("torchvision", "sklearn", "matplotlib", "ray", "datasets")
PROGRAM = f"""
import sys, fedif_flower
print(*[name for name in {HEAVY} if name in sys.modules])
"""


def test_the_library_imports_no_data_sets_plots_or_engines():
    command = [sys.executable, "-c", PROGRAM]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.split() == []
