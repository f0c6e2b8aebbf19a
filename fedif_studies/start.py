"""Starts the command ``fedif``, so that Ctrl-C gives no traceback even during imports."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; if it is interrupted, exit with 130, as a shell reports Ctrl-C."""
    try:
        # Imported here, since it takes a second during which Ctrl-C may come.
        from fedif_studies.commands import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        raise SystemExit(130) from None
