"""The settings of a member's policy as text, beside those of the library.

``python -m fedif_consortium.member.reference`` in a checkout writes both: the tables of the policy
go into ``docs/member-policy.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedif_consortium.member.app_rules import AppRules
from fedif_consortium.member.outgoing import LeavesSettings
from fedif_consortium.member.policy import PolicySettings
from fedif_consortium.member.run_rules import RunRules
from fedif_consortium.parts import server_parts
from fedif_flower.run.reference import tables_of, update
from fedif_flower.settings import Settings

MEMBER_SECTIONS: dict[str, Sequence[type[Settings]]] = {
    "Above the sections": [PolicySettings],
    "Keys of `[apps]`": [AppRules],
    "Keys of `[runs]`": [RunRules],
    "Keys of `[leaves]`": [LeavesSettings],
}


def policy_page() -> dict[str, str]:
    """Return the tables of a member's policy, by page."""
    return {"member-policy.md": tables_of(MEMBER_SECTIONS)}


if __name__ == "__main__":
    for written in update(Path.cwd(), server_parts(), policy_page()):
        print(f"written: {written}")
