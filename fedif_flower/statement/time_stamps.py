"""Checking the time stamps of a run's heads."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography.x509 import load_pem_x509_certificates

from fedif_flower.errors import ConfigError, EvidenceError, StatementError
from fedif_flower.evidence.receipts import ReceiptTree
from fedif_flower.run.folder import RunFolder
from fedif_flower.run.time_stamps import read_stamp, rfc3161, stamp_name


@dataclass(frozen=True)
class Stamped:
    """A round whose head somebody else saw at a time."""

    server_round: int
    time: datetime


def check_time_stamps(run: RunFolder, tree: ReceiptTree, roots: Path) -> tuple[Stamped, ...]:
    """Check every stamp of a run's heads; return them in the order of the heads.

    Parameters
    ----------
    run : RunFolder
        The run.
    tree : ReceiptTree
        Its tree.
    roots : Path
        Certificates (PEM) of those whose stamping servers are believed.

    Raises
    ------
    ConfigError
        If there are no certificates, or the library is not installed.
    StatementError
        Naming the round whose stamp is false.
    """
    library = rfc3161()
    try:
        certificates = load_pem_x509_certificates(roots.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"time-stamps = {str(roots)!r} holds no certificate: {error}") from error
    verifier = library.VerifierBuilder(roots=certificates).build()
    found: list[Stamped] = []
    for number, head in tree.heads:
        path = run.time_stamps / stamp_name(head)
        if not path.is_file():
            continue
        try:
            stamp = read_stamp(path)
            verifier.verify_message(stamp, head.to_bytes())
        except (EvidenceError, ValueError, RuntimeError, library.VerificationError) as error:
            raise StatementError(f"round {number}: its time stamp is false: {error}") from error
        found.append(Stamped(number, stamp.tst_info.gen_time))
        if len(found) > 1 and found[-1].time < found[-2].time:
            raise StatementError(
                f"round {number} was stamped before round {found[-2].server_round}"
            )
    return tuple(found)
