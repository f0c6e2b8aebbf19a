"""``metrics.port``: the run's figures for whoever watches it."""

from __future__ import annotations

from fedif_flower.run.part import NOTHING, Built, RunContext, RunPart
from fedif_flower.settings import Settings, in_section, setting

LOOPBACK = "127.0.0.1"


class MetricsSettings(Settings, alias_generator=in_section("metrics")):
    """Where a run's figures can be read while it goes on."""

    port: int = setting(
        0,
        "a port on which the server says its figures to Prometheus while the run goes on, at "
        "`/metrics`; 0: none",
        ge=0,
        le=65535,
        changes_result=False,
    )
    host: str = setting(
        "",
        f"the address of that port; whoever reaches it may read the figures; empty: {LOOPBACK}",
        pattern=r"^[^\s/]*$",
        allowed="an address of this machine; 0.0.0.0 or ::, all of them",
        changes_result=False,
    )
    members: bool = setting(
        False,
        "each member's weight, weight score and replies by name, for at most 1,000 members",
        changes_result=False,
    )


class ServedMetrics(RunPart):
    """Serves ``/metrics`` while the run goes on."""

    settings = MetricsSettings

    def build(self, run: RunContext) -> Built:
        """Begin to serve, and return what fills the figures.

        Raises
        ------
        ConfigError
            If the port is taken, or too many members are to be named.
        """
        own = run.config.section(MetricsSettings)
        if not own.port:
            return NOTHING
        from fedif_consortium.health import serving
        from fedif_consortium.watch.metrics import RunMetrics

        metrics = RunMetrics(run.config, members=own.members)
        key = f"metrics.port = {own.port}"
        served = serving(own.host or LOOPBACK, own.port, metrics.registry, key=key)
        run.stack.enter_context(served)
        run.waits.append(metrics.keeper_answered)
        return Built(callbacks=[metrics], on_row=metrics.row)
