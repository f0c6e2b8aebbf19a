"""The ServerApp: run config -> federation -> records and report."""

from __future__ import annotations

from fedif_flower import server_app
from hospitals.task import task

app = server_app(task, parts="fedif_consortium.parts:server_parts")
