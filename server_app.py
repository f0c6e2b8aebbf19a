"""Door 1, the ServerApp: run config -> federation -> report."""

from __future__ import annotations

import logging

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedif_flower.run.config import RunConfig
from fedif_flower.run.federation import run_federation
from fedif_flower.run.logs import show_logs
from fedif_flower.run.report import require_last_round
from fedif_flower.run.rows import RoundRow

logger = logging.getLogger("fedif_flower")

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation that the run config describes."""
    show_logs()
    config = RunConfig.from_run_config(context.run_config)
    run_dir = run_federation(grid, config, on_row=_log_row)
    logger.info("Results: %s", run_dir)
    # Flower reports a run as failed only if its ServerApp raises.
    require_last_round(run_dir)


def _log_row(row: RoundRow) -> None:
    if row.test_accuracy is not None:
        logger.info("round %d: test accuracy %.1f %%", row.round, 100 * row.test_accuracy)
