"""The settings of a member's policy as text, beside those of the library.

``python -m fedif_consortium.member.reference`` in a checkout writes both: the tables of the policy
go into ``docs/member-policy.md``.
"""

from __future__ import annotations

from pathlib import Path

from fedif_consortium.member.policy import SECTIONS, PolicySettings
from fedif_consortium.parts import server_parts
from fedif_flower.run.reference import tables_of, update


def policy_page() -> dict[str, str]:
    """Return the tables of a member's policy, by page."""
    sections = {f"Keys of `[{name}]`": [kind] for name, kind in SECTIONS.items()}
    return {"member-policy.md": tables_of({"Above the sections": [PolicySettings], **sections})}


if __name__ == "__main__":
    for written in update(Path.cwd(), server_parts(), policy_page()):
        print(f"written: {written}")
