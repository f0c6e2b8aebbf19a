"""What rows and tables call the methods of this package, and by what a run config names them."""

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
