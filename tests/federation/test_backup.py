from __future__ import annotations

import io
import sqlite3
import tarfile
from contextlib import closing

import pytest

from fedif_flower.errors import ConfigError, StorageError
from fedif_flower.federation.backup import CONTENTS, back_up, check, restore
from fedif_flower.federation.folder import FederationFolder
from fedif_flower.federation.members import invite
from tests.federation.folders import Lines, content


@pytest.fixture
def used(folder):
    """A federation with a member, a policy, a keeper, a run, and a SuperLink that is running."""
    invite(folder, "hospital-a", None, Lines().steps())
    (folder.path / "policy.toml").write_text("least = 3\n")
    (folder.path / "keeper-client.key").write_text("secret")
    folder.member_key("hospital-a").write_text("ecdsa-sha2-nistp384 AAAA")
    run = folder.runs / "october"
    run.mkdir(parents=True)
    (run / "report.md").write_text("good")
    (run / ".run.lock").touch()
    (folder.path / "superlink.log").write_text("long")
    with closing(sqlite3.connect(folder.database)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE node (id)")
        database.execute("INSERT INTO node VALUES (7)")
        database.commit()
        yield folder


def test_what_cannot_be_made_again_comes_back(used, tmp_path):
    lines = Lines()
    archive = back_up(used, None, lines.steps())
    assert archive.parent == used.backups
    assert archive.stat().st_mode & 0o777 == 0o600
    assert lines.has("wrote", str(archive), "ca.key", "policy.toml", "and 1 files of runs")
    other = FederationFolder(tmp_path / "restored")
    restore(other, archive, Lines().steps())
    before, after = content(used.path), content(other.path)
    assert after.keys() == {
        *("ca.key", "ca.crt", "server.key", "server.crt", "statement-key.pem"),
        *("federation.toml", "members/hospital-a.toml", "policy.toml", "keeper-client.key"),
        *("superlink.db", "runs/october/report.md", "members/hospital-a.pub"),
    }
    assert all(data == before[name] for name, data in after.items() if name != "superlink.db")
    with closing(sqlite3.connect(other.database)) as database:
        assert database.execute("SELECT id FROM node").fetchall() == [(7,)]
    secret = ("ca.key", "server.key", "statement-key.pem", "keeper-client.key", "superlink.db")
    assert {(other.path / name).stat().st_mode & 0o777 for name in secret} == {0o600}
    assert other.settings() == used.settings()


def rewritten(archive, change):
    """Write an archive anew, with other files in it."""
    with tarfile.open(archive) as opened:
        files = {entry.name: opened.extractfile(entry).read() for entry in opened}
    change(files)
    with tarfile.open(archive, "w:gz") as opened:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            opened.addfile(entry, io.BytesIO(data))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda files: files.update({"ca.key": b"other"}), r"is damaged: ca\.key"),
        (lambda files: files.pop("ca.crt"), r"is damaged: ca\.crt"),
        (lambda files: files.pop(CONTENTS), "is no backup of a federation"),
    ],
)
def test_an_archive_that_was_changed_is_refused(used, tmp_path, change, match):
    archive = back_up(used, tmp_path / "backup.tar.gz", Lines().steps())
    rewritten(archive, change)
    with pytest.raises(StorageError, match=match):
        check(archive)


@pytest.mark.parametrize("name", ["../stolen", "/tmp/stolen", "a/../../stolen"])
def test_a_name_that_leads_out_of_the_folder_is_refused(used, tmp_path, name):
    archive = back_up(used, tmp_path / "backup.tar.gz", Lines().steps())

    def change(files):
        told = files.pop(CONTENTS).replace(b'"ca.crt"', f'"{name}"'.encode())
        files[name] = files.pop("ca.crt")
        files[CONTENTS] = told

    rewritten(archive, change)
    with pytest.raises(ConfigError, match="leads out of the folder"):
        restore(FederationFolder(tmp_path / "other"), archive, Lines().steps())
    assert not (tmp_path / "stolen").exists()
