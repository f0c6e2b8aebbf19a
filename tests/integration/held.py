"""Slow nodes: their ClientApps wait, while they live and answer for themselves."""

from __future__ import annotations

from pathlib import Path

# A process imports it before anything else. By the time that an app imports this package, Flower's
# heartbeats are on their way.
SITE = """
import os, sys, time

class Held:
    def find_spec(self, name, path=None, target=None):
        if name == "fedif_flower":
            while os.path.exists({hold!r}):
                time.sleep(0.2)

if any(word.endswith("flwr-clientapp") for word in sys.orig_argv):
    sys.meta_path.insert(0, Held())
"""


def holding(folder: Path) -> dict[str, str]:
    """Return an environment in which ClientApps wait as long as there is a file ``hold``."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(SITE.format(hold=str(folder / "hold")))
    return {"PYTHONPATH": str(folder)}
