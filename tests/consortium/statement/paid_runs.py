"""Runs whose statement pays: what the operator says of them, and what members find."""

from __future__ import annotations

import json
from typing import Any

from fedif_consortium.evidence.keys import read_members
from fedif_consortium.statement.bundle import make_statement
from fedif_consortium.statement.manifest import ACCOUNT
from fedif_consortium.statement.verify import verify
from fedif_flower.run.folder import RunFolder
from tests.consortium.statement.receipted_runs import held

BUDGET = 1000_00


def state(run: RunFolder, key, **how) -> dict[str, Any]:
    """Let the operator make a statement; return what it says."""
    folder = make_statement(run.path, key, again=True, budget_cents=BUDGET, **how)
    return json.loads((folder / ACCOUNT).read_bytes())


def cents(said: dict[str, Any]) -> dict[str, int]:
    return {member["name"]: member["cents"] for member in said["members"]}


def checked(run: RunFolder, folder, *names: str):
    """Check with the keys of all, and the receipts of those named, or all."""
    keys = read_members(folder / "keys")
    return verify(run.path, members=keys, receipts=held(folder, *names))
