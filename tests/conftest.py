from __future__ import annotations

import logging
import os

import pytest
from hypothesis import settings

# Flower's telemetry would wait for a network that tests must not need.
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"

settings.register_profile("suite", deadline=None)
settings.load_profile("suite")


@pytest.fixture(autouse=True, scope="session")
def cache_home(tmp_path_factory):
    """Keep prepared data away from the user's own cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def shown_logs():
    """Show the package's log as the doors do."""
    from fedif_flower.run.logs import LOGGER, DoorHandler, show_logs

    show_logs()
    yield
    logger = logging.getLogger(LOGGER)
    logger.setLevel(logging.NOTSET)
    logger.handlers = [h for h in logger.handlers if not isinstance(h, DoorHandler)]
