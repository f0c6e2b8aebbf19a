from __future__ import annotations

import logging
import os
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Flower's telemetry would wait for a network that tests must not need.
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
# Of pytest-xdist's workers. Before torch is imported: each gets its share of the cores.
WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
if WORKERS > 1:
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // WORKERS)))

# Who is started in the background, as by a shell's `&`, ignores Ctrl-C, and so would processes of
# tests that send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests of these kinds start processes, and take longest: the longest file of each is a story.
SLOW = ("deployment", "ray")
# What they import, transformers and peft, takes each process longer than a hundred tests.
HEAVY = ("test_help_desk.py", "test_language_model.py")

# The same examples on every machine and in every run. HYPOTHESIS_PROFILE=search draws others.
# How long drawing takes is the machine's matter.
_ANY_SPEED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("suite", **_ANY_SPEED, derandomize=True, max_examples=20)
settings.register_profile("search", **_ANY_SPEED, max_examples=100)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the language model's tests, all marked ``all``, unread where they are not wanted."""
    wanted = "not all" not in config.option.markexpr
    return None if wanted or collection_path.name not in HEAVY else True


@pytest.hookimpl(trylast=True)  # What is deselected is out of the list by then.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with one story of each kind, so that they run at once; all else fills in."""
    if WORKERS > 1:
        files = [Counter(i.path for i in items if i.get_closest_marker(kind)) for kind in SLOW]
        stories = {found.most_common(1)[0][0] for found in files if found}
        slow = set().union(*files)
        items.sort(key=lambda item: (item.path not in stories, item.path not in slow))


@pytest.fixture(autouse=True, scope="session")
def cache_home(tmp_path_factory):
    """Keep prepared data away from the user's own cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True, scope="session")
def quiet_flower():
    """Leave out what Flower says of every round: a failing test shows its message, then the log.

    Its warnings stay. Processes that tests start say all of it.
    """
    flower = logging.getLogger("flwr")
    usual = flower.level
    flower.setLevel(logging.WARNING)
    yield
    flower.setLevel(usual)


@pytest.fixture(autouse=True, scope="session")
def no_pictures():
    """Let runs write empty pictures: to draw them takes longer than a small run itself."""
    plots = sys.modules.get("fedif_flower.run.plots")  # There where a test's module needs it.
    drawn = getattr(plots, "save_figure", None)
    with pytest.MonkeyPatch.context() as patch:
        if plots is not None:
            patch.setattr(plots, "save_figure", lambda figure, path: path.touch())
        yield drawn


@pytest.fixture
def pictures(no_pictures, monkeypatch):
    """Let runs draw their pictures in this test."""
    monkeypatch.setattr("fedif_flower.run.plots.save_figure", no_pictures)


@pytest.fixture
def shown_logs():
    """Show the package's log as the doors do."""
    from fedif_flower.run.logs import LOGGER, DoorHandler, show_logs

    show_logs()
    yield
    logger = logging.getLogger(LOGGER)
    logger.setLevel(logging.NOTSET)
    logger.handlers = [h for h in logger.handlers if not isinstance(h, DoorHandler)]
