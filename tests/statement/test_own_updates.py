"""A member's own updates tell whether its lines of a masked run are true."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from client_app import app as client_app
from fedif_flower.errors import StatementError
from fedif_flower.run.federation import run_federation
from fedif_flower.run.rows import read_rows
from fedif_flower.runtime.local_grid import LocalGrid
from fedif_flower.statement.bundle import make_statement
from fedif_flower.statement.own_updates import check_own
from fedif_flower.statement.verify import verify
from tests.run.resuming import CLIENTS, run_config

ROUNDS = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """``run/``, a masked run with its statement, and ``own/P``, what member P kept."""
    folder = tmp_path_factory.mktemp("own")
    config = run_config(
        folder,
        masking="trial",
        attribution="simpson",
        keep_vectors=True,
        num_server_rounds=ROUNDS,
        fraction_train=1.0,
    )
    nodes = {p: {"own-updates-dir": str(folder / "own" / str(p))} for p in range(CLIENTS)}
    run_federation(LocalGrid(client_app, CLIENTS, node_configs=nodes), config)
    make_statement(config.run_dir, Ed25519PrivateKey.generate())
    return folder


@pytest.fixture
def copy(folder, tmp_path) -> Path:
    return shutil.copytree(folder, tmp_path / "copy")


def change(path: Path, number: int, who: str, **values: float) -> None:
    lines = read_rows(path)
    for line in lines:
        if line["round"] == str(number) and line["partition_id"] == who:
            line.update({name: str(value) for name, value in values.items()})
    header = list(lines[0])
    text = [",".join(header), *(",".join(line[c] for c in header) for line in lines)]
    path.write_text("\n".join(text) + "\n")


@pytest.mark.parametrize("who", range(CLIENTS))
def test_each_members_own_updates_give_its_lines(folder, who):
    found = check_own(folder / "run", folder / "own" / str(who))
    lines = read_rows(folder / "run" / "attribution.csv")
    own = sum(float(r["contribution"]) for r in lines if r["partition_id"] == str(who))
    assert found.rounds == ROUNDS
    assert found.contribution == pytest.approx(own)
    assert found.not_there == ()


@pytest.mark.parametrize(
    ("name", "column", "what"),
    [("attribution.csv", "contribution", "contribution"), ("clients.csv", "score", "score")],
)
def test_a_false_line_is_named_by_the_one_member_that_can_tell(copy, name, column, what):
    change(copy / "run" / name, 3, "2", **{column: 0.5})
    with pytest.raises(StatementError, match=f"round 3: the records give this member a {what} of"):
        check_own(copy / "run", copy / "own" / "2")
    assert check_own(copy / "run", copy / "own" / "1").rounds == ROUNDS


def test_a_changed_vector_is_found(copy):
    path = copy / "run" / "vectors" / "round-000002-attribution.npz"
    with np.load(path) as content:
        vector, exponent = content["vector"].copy(), content["exponent"]
    vector[0] += 1
    np.savez(path, vector=vector, exponent=exponent)
    with pytest.raises(StatementError, match="round 2: the vector for its attribution was changed"):
        check_own(copy / "run", copy / "own" / "0")
    with pytest.raises(StatementError, match=r"round-000002-attribution\.npz was changed"):
        verify(copy / "run")
