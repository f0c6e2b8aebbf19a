"""A deployed run's statement: made at its end, and brought to the members."""

from __future__ import annotations

from collections.abc import Mapping

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedif_consortium.statement.page_delivery import deliver, state_and_deliver
from fedif_consortium.statement.settings import CLIPPING, StatementSettings
from fedif_consortium.statement.signing import default_key_path, load_or_make_key
from fedif_flower.run.part import NOTHING, Built, RunContext, RunPart
from fedif_flower.settings import Scalar
from fedif_flower.strategies.config import default_clipping
from fedif_flower.strategies.registry import WITHOUT_COEFFICIENTS


class Stated(RunPart):
    """Brings members their pages: of earlier runs at a run's start, of this one at its end."""

    settings = StatementSettings

    def automatic(self, values: Mapping[str, Scalar]) -> Mapping[str, Scalar]:
        """Bound updates where members are paid.

        One update of any length could leave a round that cannot be attributed.
        """
        strategy = str(values["strategy"])
        is_paid = bool(values.get("statement.budget")) and strategy not in WITHOUT_COEFFICIENTS
        if not is_paid or default_clipping(strategy):
            return {}
        return {"update-clipping": CLIPPING}

    def build(self, run: RunContext) -> Built:
        """Bring pages of earlier runs to nodes that were away."""
        deliver(run.grid, run.folder.path.parent)
        return NOTHING

    def finished(self, run: RunContext) -> None:
        """Make the statement, and bring members their pages."""
        state_and_deliver(run.grid, run.config, run.folder.path)


def receipt_key() -> Ed25519PrivateKey:
    """Return the key that signs what members are told of the records: the statements' own."""
    return load_or_make_key(default_key_path())
