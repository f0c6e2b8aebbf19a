"""Each example is a complete app: what Flower builds of it, and what a reader finds."""

from __future__ import annotations

import io
import zipfile

import pytest
from flwr.cli.build import build_fab_from_disk
from flwr.supercore.fab_format_version import normalize_and_validate_fab_format

from fedif_flower.run.config import RunConfig
from fedif_flower.tasks.config import OWN
from tests.examples.apps import EXAMPLES, NAMES, project


@pytest.mark.parametrize("name", NAMES)
def test_flower_builds_exactly_the_app(name):
    metadata = normalize_and_validate_fab_format(project(name))
    assert (metadata.fab_format_version, metadata.flwr_version_target) == (1, "1.41.0")
    module = name.replace("-", "_")
    files = [path for path in (EXAMPLES / name / module).iterdir() if path.is_file()]
    own = {f"{module}/{path.name}" for path in files}
    assert {f"{module}/{part}.py" for part in ("task", "server_app", "client_app")} < own
    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(EXAMPLES / name))) as fab:
        assert set(fab.namelist()) == own | {
            *(".info/CONTENT", "LICENSE", "README.md", "pyproject.toml")
        }


@pytest.mark.parametrize("name", NAMES)
def test_the_license_is_the_projects(name):
    assert (EXAMPLES / name / "LICENSE").read_bytes() == (EXAMPLES.parent / "LICENSE").read_bytes()


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"quickstart"}))
def test_every_key_of_the_run_config_is_one(name):
    config = project(name)["tool"]["flwr"]["app"]["config"]
    assert RunConfig.from_run_config(config | {"task": OWN + name}).run_name == name
    # Flower accepts on its command line what is listed: so a run can go on, or be replaced.
    assert {"run-name", "resume", "overwrite"} <= config.keys()
