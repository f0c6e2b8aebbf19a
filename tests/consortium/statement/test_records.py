from __future__ import annotations

import pytest

from fedif_consortium.statement.records import read_names, read_run
from fedif_flower.errors import ConfigError
from tests.consortium.statement.runs import make_run


@pytest.fixture
def run_dir(tmp_path):
    return make_run(tmp_path / "run", [{0: 0.5, 1: 0.25}, {0: 0.5}])


def test_records_are_read(run_dir):
    records = read_run(run_dir)
    assert records.name == "run"
    assert records.members == {0: 0, 1: 1}
    assert records.losses == [2.0, 1.25, 0.75]
    assert [part.contribution for part in records.parts] == [0.5, 0.25, 0.5]


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("summary.json", "no complete run: summary.json is missing"),
        ("attribution.csv", "without attribution: run it with attribution = 'simpson'"),
        ("provenance.json", "provenance.json' is missing"),
        ("clients.csv", "clients.csv' is missing"),
    ],
)
def test_what_is_missing_is_named(run_dir, missing, said):
    (run_dir / missing).unlink()
    with pytest.raises(ConfigError) as caught:
        read_run(run_dir)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("\n1,0,0,0.5,0.5,", "\n1,0,0,0.5,inf,", "attribution.csv, line 2"),
        ("\n1,0,0,0.5,0.5,", "\n1,0,0,0.5,,", "attribution.csv, line 2"),
        ("\n2,0,0,", "\n1,0,0,", "there twice"),
        ("\n2,0,0,", "\n3,0,0,", "this run has no round 3"),
        ("client_id", "client", "line 2: client_id = "),
        ("0.0\n1,1,1", "0.0,7\n1,1,1", "attribution.csv, line 2"),
    ],
)
def test_a_line_that_is_not_as_it_should_be_is_named(run_dir, old, new, said):
    path = run_dir / "attribution.csv"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(ConfigError, match=r"attribution\.csv") as caught:
        read_run(run_dir)
    assert said in str(caught.value)


def test_a_status_that_there_is_not_is_refused(run_dir):
    path = run_dir / "clients.csv"
    path.write_text(path.read_text().replace("accepted", "absent", 1))
    with pytest.raises(ConfigError, match=r"clients\.csv, line 2: .*status = 'absent'"):
        read_run(run_dir)


def test_a_round_that_is_missing_is_refused(run_dir):
    path = run_dir / "attribution_rounds.csv"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[::2]))
    with pytest.raises(ConfigError, match="are not 1, 2, 3"):
        read_run(run_dir)


def test_a_model_that_diverged_leaves_losses_out(run_dir):
    path = run_dir / "attribution_rounds.csv"
    path.write_text(path.read_text() + "3,0.75,nan,0.0,0.0,0.0\n4,,0.5,0.0,0.0,0.0\n")
    assert read_run(run_dir).losses == [2.0, 1.25, 0.75, 0.5]


def test_names_are_those_at_registration_or_those_given(tmp_path):
    run_dir = make_run(tmp_path / "run", [{0: 0.5}], names={0: "hospital-2"})
    assert read_run(run_dir).names == {0: "hospital-2"}
    assert read_run(run_dir, {0: "other"}).names == {0: "other"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id,name\n1,a\n", "its columns must be client_id and name"),
        ("client_id,name\n1,a\n1,b\n", "line 3: client_id = '1'"),
        ("client_id,name\nx,a\n", "line 2: client_id = 'x'"),
        ("client_id,name\n1,\n", "line 2: name = ''"),
        (f"client_id,name\n1,{'a' * 81}\n", "1 to 80 printable characters"),
        ("client_id,name\n1,a\x1b[0m\n", "1 to 80 printable characters"),
        ("client_id,name\n1,a,b\n", "its columns must be"),
    ],
)
def test_names_that_will_not_do_are_named(tmp_path, text, said):
    path = tmp_path / "names.csv"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_names(path)
    assert said in str(caught.value)
