"""MLflow; needs ``pip install 'fedif-flower[mlflow]'``."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

import mlflow
from mlflow.entities import Metric, Param

from fedif_flower.run.trackers.tracker import Tracker

_AT_ONCE = 1000  # What MLflow takes in one call.
_PARAMS_AT_ONCE = 100


def local_or_configured(directory: Path) -> str:
    """Return ``MLFLOW_TRACKING_URI`` if it is set, else a database in ``directory``."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{directory / 'mlflow.db'}"


class MLflowTracker(Tracker):
    """Sends a federation's numbers to MLflow, as one run there.

    Parameters
    ----------
    tracking_uri : str, optional
        A server or database; default: MLflow's own, as ``MLFLOW_TRACKING_URI`` says.
    experiment : str
        Where the run is listed; it is made if it is not there.
    run_name : str, optional
        Default: one that MLflow makes up.
    params : mapping of str to anything printable, optional
        Settings to show beside the run.
    """

    def __init__(
        self,
        tracking_uri: str | None = None,
        *,
        experiment: str = "fedif-flower",
        run_name: str | None = None,
        params: Mapping[str, object] | None = None,
    ) -> None:
        self._client = mlflow.MlflowClient(tracking_uri=tracking_uri)
        found = self._client.get_experiment_by_name(experiment)
        number = found.experiment_id if found else self._client.create_experiment(experiment)
        self.run_id: str = self._client.create_run(number, run_name=run_name).info.run_id
        shown = [Param(name, str(value)) for name, value in (params or {}).items()]
        for start in range(0, len(shown), _PARAMS_AT_ONCE):
            self._client.log_batch(self.run_id, params=shown[start : start + _PARAMS_AT_ONCE])

    def log(self, server_round: int, values: Mapping[str, float]) -> None:
        """Send the numbers of a round."""
        now = int(1000 * time.time())
        metrics = [Metric(name, value, now, server_round) for name, value in values.items()]
        for start in range(0, len(metrics), _AT_ONCE):
            self._client.log_batch(self.run_id, metrics=metrics[start : start + _AT_ONCE])

    def close(self) -> None:
        """Mark the run as finished."""
        self._client.set_terminated(self.run_id)
