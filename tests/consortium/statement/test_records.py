from __future__ import annotations

import re

import pytest

from fedif_consortium.statement.records import read_names, read_run
from fedif_flower.errors import ConfigError
from fedif_flower.run.folder import RunFolder
from tests.consortium.statement.runs import make_run


@pytest.fixture
def run_dir(tmp_path):
    blocks = {0: [0.5, 0.5], 1: [0.5, 0.5]}
    return make_run(tmp_path / "run", [{0: 0.5, 1: 0.25}, {0: 0.5}], blocks=blocks)


@pytest.mark.parametrize("name", ["summary", "attribution", "attributed_rounds", "clients"])
def test_a_file_that_is_missing_is_named(run_dir, name):
    path = getattr(RunFolder(run_dir), name).path
    path.unlink()
    with pytest.raises(ConfigError, match=f"{path.name}' is missing: "):
        read_run(run_dir)


ROW = "\n1,0,0,0.5,0.5,"


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("attribution", ROW, "\n1,0,0,0.5,inf,", "attribution.csv, line 2"),
        ("attribution", ROW, "\n1,0,0,0.5,,", "attribution.csv, line 2"),
        ("attribution", "client_id", "client", "attribution.csv, line 2: client_id = "),
        ("attribution", "0.25,0.25\n1,1", "0.25,0.25,7\n1,1", "attribution.csv, line 2"),
        ("clients", "accepted", "absent", "clients.csv, line 2: status = 'absent'"),
        ("attributed_rounds", "\n1,", "\n5,", "are not 1, 2, 3"),
    ],
)
def test_a_line_that_is_not_as_it_should_be_is_named(run_dir, name, old, new, said):
    path = getattr(RunFolder(run_dir), name).path
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(ConfigError, match=re.escape(said)):
        read_run(run_dir)


def test_a_model_that_diverged_leaves_losses_out(run_dir):
    path = run_dir / "attribution_rounds.csv"
    path.write_text(path.read_text() + "3,0.75,nan,0.0,0.0,0.0\n4,inf,0.5,0.0,0.0,0.0\n")
    assert read_run(run_dir).losses == [2.0, 1.25, 0.75, 0.5]


@pytest.mark.parametrize(
    "text",
    ["id,name\n1,a", "x,a", "-1,a", "1,", "1,a\x1b[0m", "1,a,b", "7,a\n7,b", f"1,{81 * 'a'}"],
)
def test_names_that_will_not_do_are_named(tmp_path, text):
    path = tmp_path / "names.csv"
    path.write_text(text if "id" in text else f"client_id,name\n{text}")
    with pytest.raises(ConfigError, match=f"names.csv, line {3 if '7' in text else 2}: "):
        read_names(path)
    path.write_text("client_id,name,place\n18446744073709551615, St. Mary's ,Graz")
    assert read_names(path) == {2**64 - 1: "St. Mary's"}
