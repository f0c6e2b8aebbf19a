"""``metrics-port``: the run's figures for whoever watches it."""

from __future__ import annotations

from fedif_flower.errors import ConfigError
from fedif_flower.run.part import NOTHING, Built, RunContext, RunPart


class ServedMetrics(RunPart):
    """Serves ``/metrics`` and ``/health`` while the run goes on."""

    def build(self, run: RunContext) -> Built:
        """Begin to serve, and return what fills the figures.

        Raises
        ------
        ConfigError
            If the package is missing, or the port is taken.
        """
        port = run.config.metrics_port
        if not port:
            return NOTHING
        try:
            from fedif_consortium.watch.metrics import serving
        except ImportError as error:
            advice = f"{error}; pip install 'fedif-flower[metrics]'"
            raise ConfigError(f"metrics-port = {port}: {advice}") from error
        metrics = run.stack.enter_context(serving(run.config))
        run.waits.append(metrics.keeper_answered)
        return Built(wires=[metrics.watched], callbacks=[metrics], on_row=metrics.row)
