"""The command ``fedif``, from its first moment: Ctrl-C while it is imported is no traceback."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; exit with 130, as a shell reports Ctrl-C, where it is interrupted."""
    try:
        from fedif_studies.commands import main as run  # Which takes a second.

        run()
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        raise SystemExit(130) from None
