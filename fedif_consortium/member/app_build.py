"""An app's folder as the bundle that Flower makes of it."""

from __future__ import annotations

from pathlib import Path

from flwr.cli.build import build_fab_from_disk

from fedif_consortium.member.app_bundle import AppBundle, read_bundle
from fedif_flower.errors import ConfigError


def build_bundle(folder: Path) -> AppBundle:
    """Return the bundle that ``flwr run`` sends of a folder.

    Raises
    ------
    ConfigError
        If it is no Flower app.
    """
    try:
        content = build_fab_from_disk(folder)
    except Exception as error:  # of many kinds, Click's among them
        raise ConfigError(f"{folder} is no Flower app: {error}") from error
    return read_bundle(content, str(folder))
