"""An operator that repeats a run until it likes the credits: members saw each attempt."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Array

from client_app import app as client_app
from fedif_consortium.evidence.attempts import LEDGER
from fedif_consortium.evidence.keys import read_members
from fedif_consortium.statement.bundle import make_statement
from fedif_consortium.statement.manifest import ENVELOPE
from fedif_consortium.statement.verify import verify
from fedif_flower.errors import ConfigError, StatementError
from fedif_flower.run import federation
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.record_files import Table
from tests.consortium.commands.typed import call
from tests.consortium.statement import signed_runs as of
from tests.consortium.statement.receipted_runs import held, nodes, run, run_and_deliver
from tests.consortium.statement.signed_runs import NAMES, bind_anew
from tests.run.resuming import Killed, killed_at

SHORT = {"num_server_rounds": 2}


@pytest.fixture(scope="module")
def repeated(tmp_path_factory, key):
    """Three attempts at one run, each from the beginning; ``kept`` has what two of them left."""
    folder = tmp_path_factory.mktemp("repeated")
    of_grid = nodes(folder)
    for number in (1, 2, 3):
        run_dir = run_and_deliver(of_grid, folder, key, overwrite=True, seed=number, **SHORT)
        shutil.copytree(run_dir, folder / "kept" / str(number))
    return folder


@pytest.fixture
def second(repeated, tmp_path):
    """What the second attempt left, and its statement."""
    return RunFolder(shutil.copytree(repeated / "kept" / "2", tmp_path / "run"))


def checked(run, folder, *names):
    keys = read_members(folder / "keys")
    return verify(run.path, members=keys, receipts=held(folder, *names))


def numbers(verified) -> list[list[int]]:
    return [[seen.number for seen in member.attempts] for member in verified.receipts]


def test_a_statement_declares_each_attempt_that_members_saw(repeated, second):
    verified = checked(second, repeated)
    assert verified.manifest.agreed.attempt == len(verified.manifest.attempts) == 2
    assert numbers(verified) == [[1, 2, 3]] * 3  # The third one came later.
    ids = [RunFolder(repeated / "kept" / n).provenance.read()["run_id"] for n in "12"]
    assert [one.run for one in verified.manifest.attempts] == ids
    said = call("verify", second.path, *(f"--receipts={path}" for path in held(repeated)))
    assert "Attempt 2 at run 'run'; those before are declared" in said
    later = "ada saw 2 of the 2 attempts that are declared, and 3 later, which this statement does"
    assert later in said
    last = RunFolder(repeated / "runs" / "run")
    assert numbers(checked(last, repeated, "ada")) == [[1, 2, 3]]
    assert last.provenance.read()["attempts"]["attempts"][1]["run"] == ids[1]


def declare(run: RunFolder, *attempts: dict[str, str]) -> None:
    """Let the operator declare other attempts."""
    provenance = run.provenance.read()
    declared = {**provenance["attempts"], "attempts": attempts}
    run.provenance.write({**provenance, "attempts": declared})


def test_an_attempt_that_is_left_out_is_found_by_what_members_signed(repeated, second, key):
    """The operator says that the second attempt was the first one."""
    (_, own) = second.provenance.read()["attempts"]["attempts"]
    declare(second, own)
    with pytest.raises(ConfigError, match=r"attempt 2 .* was not declared"):
        make_statement(second.path, key, again=True)
    for table in (second.round_heads, second.signatures):
        of.rewrite(table, of.altered({}, attempt="1"))
    bind_anew(second, key)
    make_statement(second.path, key, again=True)
    with pytest.raises(StatementError, match="ada is not the one that was signed: the signature"):
        checked(second, repeated)


def test_an_attempt_that_is_left_out_is_found_by_receipts_where_nobody_signs(tmp_path, key):
    """The operator's ledger is gone, and members have no guard that would refuse."""
    of_grid = nodes(tmp_path, signing=())
    run_and_deliver(of_grid, tmp_path, key, **SHORT)
    (tmp_path / "runs" / LEDGER).unlink()
    run_dir = run_and_deliver(of_grid, tmp_path, key, overwrite=True, seed=1, **SHORT)
    assert verify(run_dir).manifest.agreed.attempt == 1
    words = "ada holds receipts of another attempt 1 at run 'run' than the statement declares: id"
    with pytest.raises(StatementError, match=words):
        verify(run_dir, receipts=held(tmp_path, "ada"))


def test_others_runs_of_the_same_name_are_no_attempts_at_this_one(tmp_path, key):
    """A member of two federations has one folder for both; it knows whether it is in two."""
    of_grid = nodes(tmp_path, signing=())
    other = run_and_deliver(of_grid, tmp_path, Ed25519PrivateKey.generate(), **SHORT)
    other_id = RunFolder(other).provenance.read()["run_id"]
    shutil.rmtree(tmp_path / "runs")
    run_dir = run_and_deliver(of_grid, tmp_path, key, **SHORT)
    verified = verify(run_dir, receipts=held(tmp_path))
    assert numbers(verified) == [[1]] * 3
    assert [member.elsewhere for member in verified.receipts] == [(other_id,)] * 3
    # Where it is not, the operator has made an attempt go away by signing with another key.
    said = call("verify", run_dir, f"--receipts={tmp_path / 'ada'}")
    assert f"; runs of this name that another key signed: {other_id[:8]}: ask whose" in said


def test_a_manifest_of_another_attempt_is_named_as_that(repeated, second):
    shutil.copy(repeated / "kept" / "1" / "statement" / ENVELOPE, second.statement / ENVELOPE)
    words = (
        r"the manifest is of attempt 1 at run 'run' \(id .*, and provenance\.json is of attempt 2"
    )
    with pytest.raises(StatementError, match=words):
        verify(second.path)


def test_the_run_config_is_the_one_that_was_agreed_on(repeated, second, key):
    provenance = second.provenance.read()
    second.provenance.write({**provenance, "run_config": {"num-server-rounds": 2}})
    make_statement(second.path, key, again=True)
    with pytest.raises(StatementError, match="another run config than members agreed to"):
        verify(second.path)


# -- bad input


@pytest.fixture
def adas(repeated, tmp_path):
    return shutil.copytree(repeated / "ada", tmp_path / "ada")


def files(folder, kept, number, pattern="round-*.json"):
    own = RunFolder(kept / number).provenance.read()["run_id"]
    return sorted((folder / own).glob(pattern))


def test_receipts_of_other_runs_alone_are_no_receipts_of_this_one(repeated, second, adas):
    for path in files(adas, repeated / "kept", "2", "*.json"):
        path.unlink()
    with pytest.raises(ConfigError, match=r"no receipts of run [0-9a-f]{32}, but of 2 other"):
        verify(second.path, receipts=[adas])
    with pytest.raises(ConfigError, match=r"holds no receipts of run [0-9a-f]{32}$"):
        verify(second.path, receipts=[repeated / "nowhere"])


@pytest.mark.parametrize(
    ("number", "text", "words"),
    [
        ("2", "", "was changed"),
        ("2", "[]", "was changed"),
        ("2", '{"run": 5}', "was changed"),
        ("1", None, "was changed"),
    ],
)
def test_a_damaged_receipt_is_named_and_stays(repeated, second, adas, number, text, words):
    path = files(adas, repeated / "kept", number)[-1]
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "rows": "00"}) if text is None else text)
    before = path.read_bytes()
    with pytest.raises(StatementError, match=f"{path.name} {words}"):
        verify(second.path, receipts=[adas])
    assert path.read_bytes() == before


def test_a_receipt_of_an_earlier_version_is_no_changed_one(repeated, second, adas):
    """As it was kept before heads named an attempt."""
    for pattern in ("round-*.json", "sent-*.json"):
        for path in files(adas, repeated / "kept", "2", pattern):
            content = json.loads(path.read_text())
            for name in (
                "name",
                "attempt",
                "config",
                "earlier",
                "rows",
                "origin",
                "state",
                "number",
            ):
                content.pop(name, None)
            path.write_text(json.dumps(content))
    with pytest.raises(StatementError, match="was kept by an earlier version of fedif-flower"):
        verify(second.path, receipts=[adas])


@pytest.mark.parametrize("table", ["round_heads", "signatures"])
def test_records_of_an_earlier_version_make_no_statement_that_says_otherwise(second, key, table):
    own = getattr(second, table)
    columns = [name for name in own.columns if name != "attempt"]
    Table(own.path, columns).replace(own.read())
    with pytest.raises((ConfigError, StatementError), match="earlier version of fedif-flower"):
        verify(make_statement(second.path, key, again=True).parent)


def test_a_run_that_goes_on_keeps_the_name_that_was_signed(tmp_path, key):
    of_grid, settings = nodes(tmp_path), {"checkpoint_every": 1, **SHORT}
    run_dir = run_and_deliver(of_grid, tmp_path, key, **settings)
    checkpoint = run_dir / "checkpoints" / "round-000001.pt"
    more = {**settings, "resume": str(checkpoint), "run_name": "november"}
    with pytest.raises(ConfigError, match="the run that goes on is called 'run', which its"):
        run_and_deliver(of_grid, tmp_path, key, **more)
    assert not (tmp_path / "runs" / "november").exists()
    assert len(NAMES) == len(verify(run_dir, receipts=held(tmp_path)).receipts)


def test_a_run_that_was_killed_as_it_began_its_files_anew_goes_on(tmp_path, key):
    """Its provenance was gone for a moment: the ledger still says which attempts there were."""
    of_grid, settings = nodes(tmp_path), {"checkpoint_every": 1, "num_server_rounds": 3}
    with pytest.raises(Killed):
        run(of_grid, tmp_path, key, killed_at(2), **settings)
    (tmp_path / "runs" / "run" / "provenance.json").unlink()
    run_dir = run_and_deliver(of_grid, tmp_path, key, resume="auto", **settings)
    verified = verify(run_dir, receipts=held(tmp_path))
    assert verified.manifest.agreed.attempt == 2
    assert numbers(verified) == [[1, 2]] * 3


@pytest.mark.parametrize("cut", [1, 20, 21, 200])
def test_a_run_goes_on_whose_last_head_was_half_written(tmp_path, key, cut):
    """The host went down: members were told of no head that was not on the disk."""
    of_grid, settings = nodes(tmp_path), {"checkpoint_every": 1, "num_server_rounds": 3}
    with pytest.raises(Killed):
        run(of_grid, tmp_path, key, killed_at(3), **settings)
    heads = tmp_path / "runs" / "run" / "round_heads.csv"
    heads.write_bytes(heads.read_bytes()[:-cut])
    run_dir = run_and_deliver(of_grid, tmp_path, key, resume="auto", **settings)
    keys = read_members(tmp_path / "keys")
    assert verify(run_dir, members=keys, receipts=held(tmp_path)).manifest.agreed.attempt == 2


def test_a_run_that_was_done_again_in_one_attempt_is_found_by_receipts(tmp_path, key, monkeypatch):
    """It keeps its id, and told nobody of the first time; updates are others by members' noise."""
    monkeypatch.setattr(federation, "secrets", SimpleNamespace(token_hex=lambda _: "0f" * 16))
    noise = iter(range(1, 100))

    def noisy(message, context):
        reply = client_app(message, context)
        if message.metadata.message_type == "train":
            (arrays,) = reply.content.array_records.values()
            name = next(iter(arrays))
            values = arrays[name].numpy()
            arrays[name] = Array(values + values.dtype.type(1e-3 * next(noise)))
        return reply

    of_grid = nodes(tmp_path, client=noisy)
    run(of_grid, tmp_path, key, **SHORT)
    shutil.rmtree(tmp_path / "runs")
    run_dir = run_and_deliver(of_grid, tmp_path, key, **SHORT)
    assert verify(run_dir).manifest.agreed.attempt == 1
    with pytest.raises(
        StatementError, match="round 1: ada says that it sent 2 updates in attempt 1"
    ):
        verify(run_dir, receipts=held(tmp_path, "ada"))
