from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedif_consortium.statement.chain import chain
from fedif_consortium.statement.records import read_run
from tests.consortium.statement.runs import make_run

ROUNDS = [{0: 0.5, 1: 0.25}, {0: 0.25}, {1: 0.5}, {0: 0.125, 1: 0.0}]


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 3))
def test_a_changed_round_changes_its_hash_and_all_after_it_alone(tmp_path, changed):
    before = chain(read_run(make_run(tmp_path / "run", ROUNDS)))
    rounds = [dict(values) for values in ROUNDS]
    rounds[changed] = {0: 0.75}
    after = chain(read_run(make_run(tmp_path / "run", rounds)))
    same = [a == b for a, b in zip(before, after, strict=True)]
    assert same == [True] * (changed + 1) + [False] * (4 - changed)


def test_the_first_hash_is_of_what_the_run_depends_on(tmp_path):
    run_dir = make_run(tmp_path / "run", ROUNDS)
    before = chain(read_run(run_dir))
    provenance = run_dir / "provenance.json"
    provenance.write_text(provenance.read_text().replace("bb", "dd"))
    assert not set(before) & set(chain(read_run(run_dir)))
