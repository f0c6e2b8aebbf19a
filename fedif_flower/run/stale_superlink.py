"""The local SuperLink that an earlier ``flwr run`` left running, possibly in another folder."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from fedif_flower.errors import ConfigError

STOP = "pkill -f 'flower-superlink.*--simulation'"


def require_own_code(modules: Iterable[str], folder: Path) -> None:
    """Raise ConfigError if simulated clients would not import what the server did.

    Flower's SuperLink stays when a run is over, and simulates every later one. Ray lets its clients
    import from the folder that it was started in before they look into the app.

    Parameters
    ----------
    modules : iterable of str
        Names of modules that the app consists of.
    folder : Path
        Where the SuperLink was started.
    """
    for package in dict.fromkeys(name.partition(".")[0] for name in modules):
        file = getattr(sys.modules.get(package), "__file__", None)
        if file is None:
            continue
        ours = Path(file).parent if Path(file).name == "__init__.py" else Path(file)
        theirs = folder / ours.name
        if theirs.exists() and not theirs.samefile(ours) and _differ(ours, theirs):
            raise ConfigError(
                f"Flower's SuperLink was started in {folder}, and simulated clients would import "
                f"{ours.name!r} from there, which is not this app's: end the SuperLink with "
                f"`{STOP}`, and run again"
            )


def _differ(ours: Path, theirs: Path) -> bool:
    if ours.is_file():
        return not theirs.is_file() or ours.read_bytes() != theirs.read_bytes()
    return any(_differ(path, theirs / path.relative_to(ours)) for path in ours.rglob("*.py"))
