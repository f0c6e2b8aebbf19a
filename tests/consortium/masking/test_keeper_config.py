from __future__ import annotations

import re

import pytest

from fedif_consortium.masking.keeper_config import read_keeper_config
from fedif_flower.errors import ConfigError
from tests.runtime.keeping import Keeping


@pytest.fixture(scope="module")
def keeping(tmp_path_factory):
    return Keeping(tmp_path_factory.mktemp("keeper"), members=3)


def test_a_file_is_read_with_paths_beside_it(keeping):
    found = read_keeper_config(keeping.write())
    assert list(found.members) == ["member-0", "member-1", "member-2"]
    assert found.policy.sketch_share == 0.0625
    assert found.settings.certificate == str(keeping.folder / "keeper.crt")
    assert found.settings.folder == keeping.folder / "keeper-state"


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("address", "adress", "unknown key 'adress'; did you mean address?"),
        ("127.0.0.1:0", "127.0.0.1", "address = '127.0.0.1'; allowed: HOST:PORT"),
        (
            "sketch-share = 0.0625",
            "sketch-share = 2.0",
            "sketch-share = 2.0; allowed: a numb",
        ),
        (
            "sketch-share = 0.0625",
            "least-members = 4",
            "[members] has 3; allowed: at least",
        ),
        ("member-1.pub", "nobody.pub", "No such file .*nobody.pub"),
        ("member-1.pub", "keeper.crt", "[members] member-1 = 'keeper.crt' is no public key"),
        ("member-1.pub", "member-0.pub", "[members] member-1 and member-0 have the same key"),
        ('address = "127.0.0.1:0"', "", None),
        ("[policy]\nsketch-share = 0.0625", "", None),
    ],
)
def test_what_is_wrong_is_named_with_the_file(keeping, old, new, reason):
    file = keeping.write()
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    if reason is None:
        read_keeper_config(file)
        return
    pattern = reason if ".*" in reason else re.escape(reason)
    with pytest.raises(ConfigError, match=f"^{re.escape(str(file))}: .*{pattern}"):
        read_keeper_config(file)
