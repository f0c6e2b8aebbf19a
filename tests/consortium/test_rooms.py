"""Each room of the consortium can be taken away: what does not rest on it imports without it."""

from __future__ import annotations

import subprocess
import sys

TAKEN_AWAY = """
import importlib, os, pkgutil, sys

# What a room rests on, beside the library; commands rest on what they are given.
RESTS_ON = {
    "evidence": "", "watch": "", "superlink": "", "masking": "evidence", "statement": "evidence",
    "member": "evidence masking", "federation": "evidence masking member statement superlink",
}
import fedif_consortium

names = [m.name for m in pkgutil.walk_packages(fedif_consortium.__path__, "fedif_consortium.")]
for name in names:
    importlib.import_module(name)  # What they import from elsewhere is here for every room's turn.


class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(room):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


for taken, _ in RESTS_ON.items():
    if os.fork():
        os.wait()
        continue
    room = f"fedif_consortium.{taken}"
    sys.meta_path.insert(0, Blocked())
    for name in [name for name in sys.modules if name.startswith("fedif_consortium.")]:
        del sys.modules[name]
    for name in names:
        own = name.split(".")[1]
        if own != taken and taken not in RESTS_ON.get(own, "").split():
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                print(f"without {taken}: {name}: {error}")
    sys.stdout.flush()
    os._exit(0)
"""


def test_a_room_is_needed_by_those_alone_that_say_so():
    done = subprocess.run(
        [sys.executable, "-c", TAKEN_AWAY], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
