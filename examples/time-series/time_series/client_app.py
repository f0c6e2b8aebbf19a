"""The ClientApp: message -> training -> reply."""

from __future__ import annotations

from fedif_flower import client_app
from time_series.task import task

app = client_app(task, parts="fedif_consortium.parts:client_parts")
