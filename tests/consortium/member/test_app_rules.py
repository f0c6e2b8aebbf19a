from __future__ import annotations

import os

from fedif_consortium.member.app_bundle import bundle_digest
from fedif_consortium.member.app_rules import AppRules, MemberApps
from tests.consortium.member.bundles import bundle


def test_so_many_refused_bundles_are_kept(tmp_path):
    found = MemberApps(AppRules(), tmp_path, tmp_path / "state")
    contents = [bundle(f"x = {i}\n") for i in range(5)]
    digests = [bundle_digest(content) for content in contents]
    refused = tmp_path / "state" / "refused-apps"
    for age, (digest, content) in enumerate(zip(digests, contents, strict=True)):
        found.keep_refused(digest, lambda content=content: content)
        os.utime(refused / f"{digest}.fab", (age, age))
    assert {path.stem for path in refused.iterdir()} == set(digests[1:])
    assert found.find(digests[4][:12]).content == contents[4]
    found.keep_refused("../../approved-apps/x", lambda: contents[0])
    found.keep_refused(digests[0], lambda: contents[1])
    assert len(list(tmp_path.rglob("*.fab"))) == 4
