"""Door 2, the ClientApp that ``pyproject.toml`` names: message -> training -> reply."""

from __future__ import annotations

from fedif_flower.apps import client_app

app = client_app(parts="fedif_consortium.parts:client_parts")
