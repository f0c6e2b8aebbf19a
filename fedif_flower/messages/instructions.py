"""What the server tells clients beside the model: the settings, and what its data look like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from flwr.app import ConfigRecord

from fedif_flower.messages.client_config import ClientConfig
from fedif_flower.tasks.data import Normalization

CONFIG_KEY, PROXIMAL_KEY, ROUND_KEY = "client-config", "proximal-mu", "server-round"
RUN_KEY, COLLUSION_KEY = "run", "collusion"
ACCOMPLICE_KEY = "accomplice"  # In a reply that waits for what its accomplices send.
MEAN_KEY, STD_KEY, CLASSES_KEY = "pixel-mean", "pixel-std", "classes"


def instructions(
    config: ClientConfig,
    normalize: Normalization,
    classes: Sequence[str],
    *,
    run: str,
    collusion: bool = False,
) -> ConfigRecord:
    """Return what clients need: a client's own data may have another mean, or other labels.

    Parameters
    ----------
    config : ClientConfig
        The settings.
    normalize : Normalization
        The server's normalisation of pixels.
    classes : sequence of str
        What the server's labels 0, 1 ... mean.
    run : str
        Which run it is: a simulated node may work for several at a time.
    collusion : bool
        Whether accomplices can see each other's updates before they are sent.
    """
    return ConfigRecord(
        {
            CONFIG_KEY: config.to_json(),
            MEAN_KEY: list(normalize.mean),
            STD_KEY: list(normalize.std),
            CLASSES_KEY: list(classes),
            RUN_KEY: run,
            COLLUSION_KEY: collusion,
        }
    )


def read_config(received: ConfigRecord) -> ClientConfig:
    """Return the settings that the server sent."""
    return ClientConfig.from_json(str(received[CONFIG_KEY]))


def read_normalization(received: ConfigRecord) -> Normalization:
    """Return the server's normalisation of pixels."""
    mean, std = (cast(list[float], received[key]) for key in (MEAN_KEY, STD_KEY))
    return Normalization(tuple(mean), tuple(std))


def read_classes(received: ConfigRecord) -> list[str]:
    """Return what the server's labels 0, 1 ... mean."""
    return cast(list[str], received[CLASSES_KEY])
