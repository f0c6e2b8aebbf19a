from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from fedif_flower.errors import ConfigError, StorageError
from fedif_flower.federation.certificates import hosts_of, make_key, read_certificate
from fedif_flower.federation.folder import FederationFolder
from fedif_flower.federation.server import (
    confirm_rotation,
    initialize,
    make_pair,
    rotate,
    superlink_program,
    undo_rotation,
)
from tests.federation.folders import SETTINGS, Lines, content
from tests.federation.serving import serving

SECRETS = ("ca.key", "server.key", "statement-key.pem")


def test_a_folder_has_all_that_a_server_needs(folder, flower_home):
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.path.iterdir()}
    assert {name for name, mode in modes.items() if mode == 0o600} == set(SECRETS)
    assert folder.path.stat().st_mode & 0o777 == 0o700
    assert folder.settings() == SETTINGS
    known = tomllib.loads((flower_home / "config.toml").read_text())["superlink"]["consortium"]
    assert known == {"address": "127.0.0.1:9092", "root-certificates": str(folder.authority)}
    unit = (folder.path / "fedif-superlink.service").read_text()
    assert f"federation superlink --in {folder.path} -- --log-file" in unit


def test_again_it_changes_nothing(folder, tmp_path):
    before, lines = content(tmp_path), Lines()
    initialize(folder, SETTINGS, lines.steps())
    assert content(tmp_path) == before
    assert not lines.has("made")
    assert not lines.has("wrote")


def test_a_dry_run_writes_nothing(tmp_path):
    lines = Lines()
    initialize(FederationFolder(tmp_path / "server"), SETTINGS, lines.steps(dry_run=True))
    assert list(tmp_path.iterdir()) == []
    assert all(line.startswith("would ") for line in lines)
    assert all(lines.has(name) for name in (*SECRETS, "ca.crt", "server.crt", "federation.toml"))


def test_what_an_interrupted_attempt_left_out_is_made_and_no_key_with_it(folder):
    keys = [(folder.path / name).read_bytes() for name in SECRETS]
    for path in (folder.authority, folder.certificate, folder.configuration):
        path.unlink()
    initialize(folder, SETTINGS, Lines().steps())
    assert [(folder.path / name).read_bytes() for name in SECRETS] == keys
    assert hosts_of(read_certificate(folder.certificate))[-1] == "::1"


@pytest.mark.parametrize("name", ["ca", "server"])
def test_a_key_that_was_lost_is_not_made_anew_beside_its_certificate(folder, name):
    (folder.path / f"{name}.key").unlink()
    before = content(folder.path)
    with pytest.raises(ConfigError, match=rf"{name}\.crt is there, but {name}\.key is not"):
        initialize(folder, SETTINGS, Lines().steps())
    assert content(folder.path) == before


def test_a_certificate_of_another_key_is_found(folder):
    folder.server_key.write_bytes(make_key())
    with pytest.raises(ConfigError, match=r"server\.crt does not work for localhost"):
        initialize(folder, SETTINGS, Lines().steps())


def test_another_federation_in_the_same_folder_is_refused(folder, tmp_path):
    before = content(tmp_path)
    with pytest.raises(ConfigError, match=r"listen = '127.0.0.1:9092' there, '0.0.0.0:9092' here"):
        initialize(folder, SETTINGS.replace(listen="0.0.0.0:9092"), Lines().steps())
    assert content(tmp_path) == before


def test_a_connection_of_another_superlink_is_not_replaced(folder, tmp_path, flower_home):
    before = (flower_home / "config.toml").read_bytes()
    with pytest.raises(ConfigError, match=r"has a connection 'consortium' to '127\.0\.0\.1:9092'"):
        initialize(FederationFolder(tmp_path / "other"), SETTINGS, Lines().steps())
    assert (flower_home / "config.toml").read_bytes() == before


def test_a_key_that_others_may_read_is_refused(folder):
    folder.server_key.chmod(0o644)
    with pytest.raises(ConfigError, match=r"server\.key.*chmod 600"):
        initialize(folder, SETTINGS, Lines().steps())


def test_the_superlink_is_guarded_and_takes_more_options(folder):
    program = superlink_program(folder, ["--log-file", "superlink.log"])
    words = list(program.arguments)
    assert words[1:3] == ["-m", "fedif_flower.runtime.guarded_superlink"]
    assert words[words.index("--host") + 1] == "127.0.0.1"
    assert words[words.index("--port") + 1] == "9092"
    assert "--enable-supernode-auth" in words
    assert words[-2:] == ["--log-file", "superlink.log"]
    assert program.folder == folder.path
    assert program.environment["FEDIF_STATEMENT_KEY"] == str(folder.statement_key)
    assert program.environment["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    folder.certificate.unlink()
    with pytest.raises(ConfigError, match=r"server\.crt is missing: run `fedif federation init`"):
        superlink_program(folder, [])


def test_without_a_federation_every_command_says_what_to_do(tmp_path):
    with pytest.raises(ConfigError, match=r"no federation\.toml: name the federation's folder"):
        superlink_program(FederationFolder(tmp_path), [])


def test_a_rotation_keeps_the_old_certificate_until_the_new_one_is_served(folder):
    old = folder.certificate.read_bytes()
    with serving(folder) as settings:
        folder.configuration.write_text(settings)
        rotate(folder, ["fl.example.org"], Lines().steps())
        assert folder.previous_certificate.read_bytes() == old
        assert "fl.example.org" in hosts_of(read_certificate(folder.certificate))
        assert folder.settings().hosts == ["localhost"]
        with pytest.raises(ConfigError, match=r"does not serve .*server\.crt yet: restart it"):
            confirm_rotation(folder, Lines().steps())
        assert folder.previous_certificate.exists()
        with pytest.raises(ConfigError, match="end the rotation before with --confirm or --back"):
            rotate(folder, [], Lines().steps())
    with serving(folder) as settings:
        folder.configuration.write_text(settings)
        confirm_rotation(folder, Lines().steps(dry_run=True))
        assert folder.previous_certificate.exists()
        confirm_rotation(folder, Lines().steps())
    assert not folder.previous_certificate.exists()
    assert folder.settings().hosts == ["localhost", "fl.example.org"]


def test_a_rotation_can_be_undone(folder):
    old = folder.certificate.read_bytes()
    rotate(folder, [], Lines().steps())
    assert folder.certificate.read_bytes() != old
    undo_rotation(folder, Lines().steps())
    assert folder.certificate.read_bytes() == old
    with pytest.raises(ConfigError, match="to go back to"):
        undo_rotation(folder, Lines().steps())


def test_a_dry_rotation_changes_nothing(folder):
    before, lines = content(folder.path), Lines()
    rotate(folder, ["fl.example.org"], lines.steps(dry_run=True))
    assert content(folder.path) == before
    assert lines.has("would write", "server.previous.crt")


def test_a_rotation_whose_certificate_would_not_work_changes_nothing(folder):
    before = content(folder.path)
    with pytest.raises(ConfigError, match="is neither a host's name nor an address"):
        rotate(folder, ["no host"], Lines().steps())
    assert content(folder.path) == before
    folder.authority_key.write_bytes(make_key())
    with pytest.raises(ConfigError, match="is not the certificate of"):
        rotate(folder, [], Lines().steps())


def test_a_keeper_s_pair_is_made_once(tmp_path: Path):
    make_pair(tmp_path, "keeper", ["keeper.org", "::2"], "the operator", Lines().steps())
    found = hosts_of(read_certificate(tmp_path / "keeper.crt"))
    assert found[-2:] == ["keeper.org", "::2"]
    assert (tmp_path / "keeper.key").stat().st_mode & 0o777 == 0o600
    before, lines = content(tmp_path), Lines()
    make_pair(tmp_path, "keeper", ["other.org"], "the operator", lines.steps())
    assert content(tmp_path) == before
    assert len(lines) == 2
    assert all(line.startswith("kept ") for line in lines)


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"cannot write .*file/server"):
        initialize(FederationFolder(tmp_path / "file" / "server"), SETTINGS, Lines().steps())
