"""Door 3, one machine: the command ``fedif`` of a checkout that is not installed."""

from __future__ import annotations

from fedif_studies.commands import cli, main

__all__ = ["cli", "main"]

if __name__ == "__main__":
    main()
