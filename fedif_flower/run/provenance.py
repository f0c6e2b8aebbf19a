"""Where a result comes from: hashes of the settings, the validation set and the code.

``provenance.json`` is written as a run begins; a statement signs it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

CODE = "code_sha256"
MODULES = "modules"  # Of the code beside this package: a hash of each.
RUN_ID = "run_id"  # Drawn for a run, and kept where it is resumed.
PACKAGE = Path(__file__).resolve().parents[1]
# What a run's bundle leaves out: a server that got one has the same hash as a checkout.
_NOT_IN_BUNDLES = ("cli.py", "listing.py", "run/reference.py", "runtime", "scaffold.py")


def package_version() -> str:
    """Return this package's version; empty where it came with an app and is not installed."""
    try:
        return version("fedif-flower")
    except PackageNotFoundError:
        return ""


def origin(
    settings: str, validation: Iterable[Tensor], modules: Mapping[str, str]
) -> dict[str, Any]:
    """Return where a result comes from, as a statement signs it.

    Parameters
    ----------
    settings : str
        The settings' SHA-256; empty: they are not known.
    validation : iterable of Tensor
        The data that contributions are measured on.
    modules : mapping of str to str
        The code beside this package, as :func:`~fedif_flower.run.modules.modules_of` returns it.
    """
    return {
        "settings_sha256": settings,
        "validation_sha256": data_hash(validation),
        CODE: code_hash(modules),
        MODULES: dict(modules),
        "versions": {
            "fedif-flower": package_version(),
            "flwr": version("flwr"),
            "torch": version("torch"),
        },
    }


def data_hash(tensors: Iterable[Tensor]) -> str:
    """Return :func:`tensors_hash`; empty where there are no tensors, which would all hash alike."""
    data = list(tensors)
    if not data:
        return ""
    return tensors_hash(data)


def tensors_hash(tensors: Iterable[Tensor]) -> str:
    """Return the SHA-256 of tensors: types, shapes and values, in whatever memory layout."""
    import torch  # which checking a statement should not have to wait for

    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def code_hash(modules: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the SHA-256 of the code that a run may execute: this package's, and other modules'."""
    if not modules:
        return package_hash()
    hashes = f"{package_hash()} {modules_hash(modules)}"
    return hashlib.sha256(hashes.encode()).hexdigest()


def modules_hash(modules: Mapping[str, str]) -> str:
    """Return one SHA-256 of the hashes of all modules."""
    text = json.dumps(dict(modules), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


@lru_cache(maxsize=1)
def package_hash() -> str:
    """Return the SHA-256 of this package's source, the parts that a run may execute."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE)
        if name.as_posix() not in _NOT_IN_BUNDLES and name.parts[0] not in _NOT_IN_BUNDLES:
            digest.update(f"{name.as_posix()} {path.stat().st_size}\n".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()
