"""Door 2, the ClientApp that ``pyproject.toml`` names: the package's own, its log shown."""

from __future__ import annotations

from fedif_flower.client.app import app
from fedif_flower.run.logs import show_logs

__all__ = ["app"]

show_logs()
