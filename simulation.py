"""Door 3, one machine: the package's command ``fedif``, and with it the tables of the paper."""

from __future__ import annotations

from fedif_studies.commands import cli, main
from fedif_studies.paper.commands import paper, report

cli.command()(paper)
cli.command()(report)  # in place of the package's own: it knows the paper's tables as well

if __name__ == "__main__":
    main()
