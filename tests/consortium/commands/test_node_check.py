from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from fedif_consortium.commands.node import node_cli


@pytest.fixture
def images(tmp_path):
    """A member's own images, and no terminal that breaks lines."""
    for name in ("cat", "dog"):
        folder = tmp_path / "train" / name
        folder.mkdir(parents=True)
        for number in range(3):
            Image.fromarray(np.full((8, 8), 40 * number, np.uint8)).save(folder / f"{number}.png")
    return tmp_path


def check(*arguments: str):
    command = ["check", *arguments, "-c", 'device="cpu"']
    return CliRunner(env={"COLUMNS": "300"}).invoke(node_cli, command, catch_exceptions=False)


def test_what_to_do_is_beside_what_is_not_well_and_the_status_says_so(images, tmp_path):
    for folder in ("cat", "dog"):
        for path in (images / "train" / folder).iterdir():
            path.unlink()
    policy = tmp_path / "member-policy.toml"
    policy.write_text("")
    result = check(
        *("--node-config", f"partition-id=0 data-dir='{images}'"),
        *("--policy", str(policy), "--server", "nowhere"),
    )
    assert result.exit_code == 1
    lines = result.output.splitlines()
    for name, status, said in (
        ("data", "failed", "put the data where data-dir"),
        ("app", "warning", "fedif app approve"),
        ("certificate", "failed", "allowed: HOST:PORT"),
    ):
        (line,) = [line for line in lines if line.startswith(f"│ {name} ")]
        assert f" {status} " in line
        assert said in line
