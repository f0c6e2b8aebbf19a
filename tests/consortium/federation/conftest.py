from __future__ import annotations

from pathlib import Path

import pytest

from fedif_consortium.federation.records import FederationFolder
from tests.consortium.federation.folders import Registry, answer_of, make_federation


@pytest.fixture(autouse=True)
def flower_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep connections away from the user's own."""
    (home := tmp_path / "flower").mkdir()
    (home / "config.toml").write_text('[superlink]\ndefault = "x"\n[superlink.x]\naddress = "a:1"')
    monkeypatch.setenv("FLWR_HOME", str(home))
    return home


@pytest.fixture
def folder(tmp_path: Path) -> FederationFolder:
    return make_federation(tmp_path / "server")


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def answer(folder: FederationFolder, tmp_path: Path) -> Path:
    return answer_of(folder, "hospital-a", tmp_path / "a")
