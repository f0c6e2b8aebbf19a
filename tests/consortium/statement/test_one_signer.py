"""One key is one signer: a server that pays a member twice is found, one registered anew is not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from flwr.app import Error, Message

from client_app import app as client_app
from fedif_consortium.evidence.check_signatures import SignedMember
from fedif_consortium.evidence.keys import read_key_file, read_members
from fedif_consortium.statement.bundle import make_statement
from fedif_consortium.statement.verify import verify
from fedif_flower.errors import StatementError
from fedif_flower.messages.instructions import ROUND_KEY
from tests.consortium.commands.typed import call
from tests.consortium.statement import signed_runs as of


class SharedName(of.NamedGrid):
    """A grid whose first two nodes have one name, or none."""

    name = ""

    def get_nodes(self):
        names = dict(zip(self.get_node_ids(), (self.name, self.name, "cyd"), strict=True))
        return [SimpleNamespace(node_id=i, name=n, public_key=b"") for i, n in names.items()]


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return of.write_keys(tmp_path_factory.mktemp("signers") / "keys")


def run_of_two_nodes(keys, folder, name, answers):
    """Run a federation in which two nodes sign with ada's key, each in the rounds that it answers.

    Parameters
    ----------
    keys, folder : Path
        The members' keys, and where the run goes.
    name : str
        What the two nodes are called.
    answers : dict of int to set of int
        By partition, the rounds in which it answers; others answer always.
    """
    own = {i: read_key_file(keys / who, who) for i, who in enumerate(("ada", "ada", "cyd"))}
    signing = of.guarded(client_app, own)

    def client(message, context):
        rounds = answers.get(int(context.node_config["partition-id"]), set())
        if rounds and message.content["config"].get(ROUND_KEY) not in rounds:
            return Message(Error(0, "away"), reply_to=message)
        return signing(message, context)

    grid = SharedName(client, len(of.NAMES))
    grid.name = name
    return of.run(grid, folder)


@pytest.mark.parametrize("name", ["", "ada"])
@pytest.mark.parametrize(
    ("answers", "last"), [({}, 3), ({0: {1, 3}, 1: {2}}, 3), ({0: {2, 3}, 1: {1, 2}}, 2)]
)
def test_a_key_that_signs_for_two_clients_is_refused(keys, tmp_path, key, name, answers, last):
    run_dir = run_of_two_nodes(keys, tmp_path, name, answers)
    make_statement(run_dir, key)
    called = r"{0} \(client {1}\)" if name else "client {1}"
    both = f"{{}} and {{}} are both signed for with {{}}, as late as round {last}"
    clients = sorted((1000, 1001), key=lambda one: min(answers.get(one - 1000, {1})))
    words = [called.format(name, client_id) for client_id in clients]
    with pytest.raises(StatementError, match=both.format(*words, "one key")):
        verify(run_dir)
    with pytest.raises(StatementError, match=both.format(*words, "the key of ada")):
        verify(run_dir, members=read_members(keys))


def test_a_member_that_is_registered_anew_is_said(keys, tmp_path, key):
    """Who lost the SuperLink's database registers all members again: they get other ids."""
    run_dir = run_of_two_nodes(keys, tmp_path, "ada", {0: {1}, 1: {2, 3}})
    make_statement(run_dir, key)
    found = verify(run_dir, members=read_members(keys)).members
    expected = SignedMember("ada", 1, 1), SignedMember("ada", 2, 2, (1000,))
    assert found == (*expected, SignedMember("cyd", 3, 3))
    said = call("verify", run_dir, "--members", keys)
    assert "ada signed earlier rounds as another client, 1000: ask whether it was" in said
    assert "cyd signed earlier" not in said
