from __future__ import annotations

import pytest

from fedif_consortium.statement.records import read_names, read_run
from fedif_flower.errors import ConfigError
from fedif_flower.run.folder import RunFolder
from tests.consortium.statement.runs import make_run


@pytest.fixture
def run_dir(tmp_path):
    blocks = {0: [0.5, 0.5], 1: [0.5, 0.5]}
    return make_run(tmp_path / "run", [{0: 0.5, 1: 0.25}, {0: 0.5}], blocks=blocks)


ROW = "\n1,0,0,0.5,0.5,"


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("summary", None, None, "summary.json' is missing: no complete run"),
        (
            "attribution",
            None,
            None,
            "attribution.csv' is missing: run it with attribution = 'simpson'",
        ),
        ("clients", None, None, "clients.csv' is missing"),
        ("attribution", ROW, "\n1,0,0,0.5,inf,", "attribution.csv, line 2"),
        ("attribution", ROW, "\n1,0,0,0.5,,", "attribution.csv, line 2"),
        ("attribution", "client_id", "client", "attribution.csv, line 2: client_id = "),
        ("attribution", "0.25,0.25\n1,1", "0.25,0.25,7\n1,1", "attribution.csv, line 2"),
        ("clients", "accepted", "absent", "clients.csv, line 2: status = 'absent'"),
        ("attributed_rounds", "\n1,", "\n5,", "are not 1, 2, 3"),
    ],
)
def test_what_is_missing_or_not_as_it_should_be_is_named(run_dir, name, old, new, said):
    path = getattr(RunFolder(run_dir), name).path
    if old is None:
        path.unlink()
    else:
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(ConfigError) as caught:
        read_run(run_dir)
    assert said in str(caught.value)


def test_a_model_that_diverged_leaves_losses_out(run_dir):
    path = run_dir / "attribution_rounds.csv"
    path.write_text(path.read_text() + "3,0.75,nan,0.0,0.0,0.0\n4,inf,0.5,0.0,0.0,0.0\n")
    assert read_run(run_dir).losses == [2.0, 1.25, 0.75, 0.5]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id,name\n1,a\n", "line 2"),
        ("client_id,name\n1,a\n1,b\n", "line 3: client_id = '1'"),
        ("client_id,name\nx,a\n", "line 2: client_id = 'x'"),
        ("client_id,name\n1,\n", "line 2"),
        (f"client_id,name\n1,{'a' * 81}\n", "line 2"),
        ("client_id,name\n1,a\x1b[0m\n", "line 2"),
        ("client_id,name\n1,a,b\n", "line 2"),
    ],
)
def test_names_that_will_not_do_are_named(tmp_path, text, said):
    path = tmp_path / "names.csv"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_names(path)
    assert said in str(caught.value)
