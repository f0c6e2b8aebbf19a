"""Door 1, the ServerApp that ``pyproject.toml`` names: run config -> federation -> report."""

from __future__ import annotations

from fedif_flower.apps import server_app

PARTS = "fedif_consortium.parts:server_parts"

app = server_app(parts=PARTS)
