"""Door 3, one machine: the command ``fedif`` of a checkout that is not installed."""

from __future__ import annotations

from fedif_studies.start import main

if __name__ == "__main__":
    main()
