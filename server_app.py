"""Door 1, the ServerApp that ``pyproject.toml`` names: run config -> federation -> report."""

from __future__ import annotations

from fedif_flower.apps import server_app

app = server_app(parts="fedif_consortium.parts:server_parts")
