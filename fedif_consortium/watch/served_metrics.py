"""``metrics-port``: the run's figures for whoever watches it."""

from __future__ import annotations

from fedif_flower.run.part import NOTHING, Built, RunContext, RunPart


class ServedMetrics(RunPart):
    """Serves ``/metrics`` while the run goes on."""

    heeds = ("metrics_port",)

    def build(self, run: RunContext) -> Built:
        """Begin to serve, and return what fills the figures.

        Raises
        ------
        ConfigError
            If the port is taken, or too many members are to be named.
        """
        port = run.config.metrics_port
        if not port:
            return NOTHING
        from fedif_consortium.watch.health import serving
        from fedif_consortium.watch.metrics import RunMetrics

        metrics, key = RunMetrics(run.config), f"metrics-port = {port}"
        run.stack.enter_context(serving(run.config.metrics_host, port, metrics.registry, key=key))
        run.waits.append(metrics.keeper_answered)
        return Built(wires=[metrics.watched], callbacks=[metrics], on_row=metrics.row)
