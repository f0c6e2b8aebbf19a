from __future__ import annotations

import re
from datetime import date

import pytest

from fedif_consortium.member.outgoing import LeavesSettings
from fedif_consortium.member.policy import read_member_policy
from fedif_consortium.member.runs import RunRules
from fedif_flower.errors import ConfigError

NOISE = "[leaves]\nnoise-multiplier = 1.0\nclip-length = 1.0\n"
WRITTEN = """state = '/var/lib/it'
[apps]
approved = 'here'
[runs]
names = ['a/b']
first-day = 2026-01-31
[runs.config]
rate = {most = 0.5}
"""


def test_a_folder_stands_for_its_file_or_for_the_defaults(tmp_path):
    default = read_member_policy(tmp_path)
    assert (default.runs, default.leaves) == (RunRules(), LeavesSettings())
    assert default.apps.approved == tmp_path / "approved-apps"
    (tmp_path / "member-policy.toml").write_text(WRITTEN)
    policy = read_member_policy(tmp_path)
    assert (str(policy.state), policy.apps.approved) == ("/var/lib/it", tmp_path / "here")
    assert (policy.runs.names, policy.runs.first_day) == (["a/b"], date(2026, 1, 31))
    assert policy.runs.config["rate"].most == 0.5
    with pytest.raises(ConfigError, match=r"none\.toml"):
        read_member_policy(tmp_path / "none.toml")


def test_a_name_may_have_dots_and_a_metric_spaces(tmp_path):
    """As other apps have them: the record is what stands before some dot."""
    text = "metrics = ['my.metrics.loss', 'metrics.train loss']\narrays = ['a.b.c int8']"
    (tmp_path / "member-policy.toml").write_text(f"[leaves]\n{text}\nconfig = ['a.b.c number']")
    leaves = read_member_policy(tmp_path).leaves
    assert leaves.metrics == ["my.metrics.loss", "metrics.train loss"]
    assert (leaves.arrays, leaves.config) == (["a.b.c int8"], ["a.b.c number"])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("stat = 'x'", "unknown key 'stat'; did you mean state?"),
        ("[app]", "unknown key 'app'; did you mean apps?"),
        ("[apps]\nleast-signers = 0", "[apps] least-signers = 0; allowed: an integer >= 1"),
        ("[runs]\nnames = [3]", "[runs] names = 3; allowed: a list of names, each"),
        # What can match nothing would let no app run, or nothing leave.
        (
            "[runs]\nnames = ['a/b', 'fedif-flower']",
            "[runs] names = 'fedif-flower'; allowed: a list",
        ),
        (
            "[runs]\nnames = ['']",
            "[runs] names = ''; allowed: a list of names, each \"publisher/name",
        ),
        (
            "[leaves]\nmetrics = ['trainloss']",
            "[leaves] metrics = 'trainloss'; allowed: a list of n",
        ),
        (
            "[leaves]\nmetrics = ['metrics train-loss']",
            "[leaves] metrics = 'metrics train-loss'; all",
        ),
        (
            "[leaves]\nmetrics = ['metrics.']",
            "[leaves] metrics = 'metrics.'; allowed: a list of na",
        ),
        (
            "[leaves]\nconfig = ['attack number']",
            "[leaves] config = 'attack number'; allowed: a li",
        ),
        (
            "[leaves]\nconfig = ['attack text[4]']",
            "[leaves] config = 'attack text[4]'; allowed: a ",
        ),
        (
            "[leaves]\narrays = ['mask uint64']",
            "[leaves] arrays = 'mask uint64'; allowed: a list s",
        ),
        ("[runs]\nfirst-day = '31.1.'", "[runs] first-day = '31.1.'; allowed: a date, such as"),
        ("[runs.config]\nkey = []", "[runs] config.key = []; allowed: for each key"),
        ("[runs.config]\na = 1\nb = nan", "[runs] config.b = nan; allowed: for each key"),
        ("[runs.config]\na = [1, nan]", "[runs] config.a = [1, nan]; allowed: for each key"),
        ("[runs.config]\n'c.d' = 2026-01-31", "[runs] config.c.d = datetime.date(2026, 1, 31); al"),
        ("[runs]\nconfig = 5", "[runs] config = 5; allowed: for each key"),
        ("[runs.config]\nkey = {leest = 1}", "[runs] config.key = {'leest': 1}; allowed"),
        # What contradicts itself would refuse every run, and say so to the operator alone.
        ("[runs.config]\nkey = {least = 5, most = 1}", "[runs] config.key = {'least': 5, 'mo"),
        (
            "[runs]\nfirst-day = 2026-02-01\nlast-day = 2026-01-31",
            "[runs] last-day = '2026-01-31'; allowed: first-day = 2026-02-01 or ",
        ),
        (
            "[apps]\nx = 1",
            "[apps] unknown key 'x'; known keys: approved, signers, signatures, least-signers",
        ),
        (
            "[leaves]\nclip_length = 1.0\nclip-length = 2.0",
            "[leaves] clip_length and clip-length are one key; allowed: one of them",
        ),
        ("[leaves]\nmetric-digit = 3", "[leaves] unknown key 'metric-digit'; did you mean metric-"),
        ("[leaves]\narrays = ['a.b nofloat']", "[leaves] arrays = "),
        ("[leaves]\nconfig = ['a.b text[*]']", "[leaves] config = "),
        ("[leaves]\nnoise-multiplier = 1.0", "[leaves] clip-length = 0.0; allowed: more than 0"),
        # Without noise each update would leave as it is, whatever the budget.
        ("[leaves]\nmost-epsilon = 2.0", "[leaves] most-epsilon = 2.0; allowed: 8 where noise-"),
        ("[leaves]\ntarget-delta = 1e-6", "[leaves] target-delta = 1e-06; allowed: 1e-05 where"),
        (
            "[leaves]\nconfig = ['a.b text[4]', 'a.b text[400]']",
            "[leaves] config = ['a.b text[4]', 'a.b text[400]']; allowed: each RECORD.KEY once",
        ),
        (
            "[leaves]\narrays = ['a.b int8', 'a.b int64']",
            "[leaves] arrays = ['a.b int8', 'a.b int64']; allowed: each RECORD.KEY once",
        ),
        (f"{NOISE}buffers = true", "[leaves] buffers = True; allowed: none with noise"),
    ],
)
def test_an_error_names_the_file_and_the_key(tmp_path, text, reason):
    (path := tmp_path / "policy.toml").write_text(text)
    with pytest.raises(ConfigError, match=re.escape(f"{path}: {reason}")):
        read_member_policy(path)
