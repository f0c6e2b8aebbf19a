"""The server's own seed: with real members, its draws do not follow from the seed of the run.

Members are told the run's seed. One who can foresee what the server draws gains by it: who is drawn
in a round changes with who is online, and a rule that looks at some coordinates does not see what
lies in the others. So where clients are no simulation, the strategy draws by a seed of its own,

    seed = derived from a secret number,    commitment = SHA-256(secret)

The secret is drawn at random as a run begins, and kept in its checkpoints. The commitment is in
``provenance.json`` before the first round. At the end the secret is written to
``server_seed.json``, so that the weights of kept updates can be computed again.

A simulation has no members to hide anything from. It draws by the run's seed, and can be repeated.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from fedif_flower.errors import StatementError
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.part import NOTHING, Built, PartState, RunContext, RunPart
from fedif_flower.run.secret_validation import commitment_of
from fedif_flower.seeding import derive_seed
from fedif_flower.server.nodes import has_real_nodes
from fedif_flower.server.run import Callback

NAME = "server-seed"  # Its name in checkpoints.
COMMITMENT = "server_seed_commitment"  # A key of the provenance.
_SECRET = "secret"  # A key of checkpoints and of server_seed.json.
_BYTES = 32  # Of the secret.


class HiddenSeed(int):
    """A seed that is not shown where an object with it is: logs have a strategy's settings."""

    def __repr__(self) -> str:
        """Return words in place of the number."""
        return "the server's own"


def seed_of_secret(secret: str) -> HiddenSeed:
    """Return the seed, in [0, 2**63), that follows from a secret in hex."""
    return HiddenSeed(derive_seed(NAME, int(secret, 16)))


def read_server_seed(folder: RunFolder, provenance: Mapping[str, Any]) -> HiddenSeed | None:
    """Return the seed by which a complete run's strategy drew; ``None``: it is the run's seed.

    Raises
    ------
    StatementError
        If the folder does not have the secret to which the run committed.
    """
    if COMMITMENT not in provenance:
        return None
    secret = str(folder.server_seed.read_if_there().get(_SECRET, ""))
    if commitment_of(secret) != provenance[COMMITMENT]:
        raise StatementError(
            f"{folder.server_seed.path.name} does not have the secret that the run committed to, "
            "from which the server's draws follow"
        )
    return seed_of_secret(secret)


class ServerSeedState(Callback, PartState):
    """Keeps the secret in checkpoints, and writes it to the run's folder at the end.

    Parameters
    ----------
    folder : RunFolder
        The run's folder.
    secret : str
        The secret, in hex.
    """

    def __init__(self, folder: RunFolder, secret: str) -> None:
        self._folder = folder
        self._secret = secret

    def on_end(self) -> None:
        """Write the secret: no draw is left that members could foresee."""
        self._folder.server_seed.write({_SECRET: self._secret})

    def memory(self, last_round: int) -> dict[str, Any]:  # noqa: ARG002
        """Return the secret."""
        return {_SECRET: self._secret}

    def restore(
        self, lines: Sequence[Mapping[str, Any]], memory: Mapping[str, Any] | None, last_round: int
    ) -> None:
        """Do nothing: :class:`ServerSeed` has read the secret from the checkpoint already."""


class ServerSeed(RunPart):
    """Has the strategy draw by a seed of its own, unless all clients are simulated."""

    def build(self, run: RunContext) -> Built:
        """Return the strategy's seed, and what keeps the secret and commits to it."""
        if not has_real_nodes(run.grid):
            return NOTHING
        secret = secrets.token_hex(_BYTES)
        if run.checkpoint is not None:
            memory = run.checkpoint.records.get(NAME)
            if memory is None:
                # The rounds before drew by the run's seed. A replay takes one seed for all rounds.
                return NOTHING
            secret = memory[_SECRET]
        secret_state = ServerSeedState(run.folder, secret)
        return Built(
            setup={"seed": seed_of_secret(secret)},
            callbacks=[secret_state],
            state={NAME: secret_state},
            provenance={COMMITMENT: commitment_of(secret)},
        )
