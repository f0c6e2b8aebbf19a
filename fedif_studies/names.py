"""The strategies of this package: their short names in rows and tables, and in a run config."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

NAMES: Mapping[str, str] = MappingProxyType(
    {
        "autobant": "fedif_studies.autobant:AutoBant",
        "oracle": "fedif_studies.oracle:OracleExclusion",
        "trigger-inversion": "fedif_studies.backdoors.screen:TriggerScreen",
    }
)
