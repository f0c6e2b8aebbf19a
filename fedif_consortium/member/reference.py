"""Writes the tables of settings in the documentation, those of a member's policy included.

Call ``python -m fedif_consortium.member.reference`` in a checkout. The tables of the policy go into
``docs/member-policy.md``, beside the library's own pages.
"""

from __future__ import annotations

from pathlib import Path

from fedif_consortium.member.policy import SECTIONS, PolicySettings
from fedif_consortium.parts import server_parts
from fedif_flower.run.reference import tables_of, update
from fedif_flower.settings import Settings


def policy_page() -> dict[str, str]:
    """Return the tables of the settings of a member's policy, by the page that has them."""
    classes: dict[str, list[type[Settings]]] = {"Above the sections": [PolicySettings]}
    for name, section in SECTIONS.items():
        classes[f"Keys of `[{name}]`"] = [section]
    return {"member-policy.md": tables_of(classes)}


if __name__ == "__main__":
    for path in update(Path.cwd(), server_parts(), policy_page()):
        print(f"written: {path}")
