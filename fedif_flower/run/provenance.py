"""Where a result comes from: hashes of the settings, the validation set and the code.

``provenance.json`` is written as a run begins; a statement signs it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fedif_flower.storage import content_key

if TYPE_CHECKING:
    from torch import Tensor

CODE = "code_sha256"
MODULES = "modules"  # The modules outside this package that a run executes: a hash of each.
RUN_ID = "run_id"  # A random id, which a resumed run keeps.
PACKAGE = Path(__file__).resolve().parents[1]
# Files that are not hashed, since an app's bundle leaves them out: a server that was sent a bundle
# is to have the same hash as one that runs in a checkout.
_NOT_IN_BUNDLES = ("cli.py", "listing.py", "run/reference.py", "runtime", "new_app.py")


def package_version() -> str:
    """Return this package's version; empty where it came with an app and is not installed."""
    try:
        return version("fedif-flower")
    except PackageNotFoundError:
        return ""


def origin(
    settings: str, validation: Iterable[Tensor], modules: Mapping[str, str]
) -> dict[str, Any]:
    """Return what a result comes from, as hashes and versions that a statement signs.

    Parameters
    ----------
    settings : str
        The SHA-256 of the settings; empty: they are not known.
    validation : iterable of Tensor
        The tensors of the held-out set; none: the run has no such set.
    modules : mapping of str to str
        The modules outside this package, as
        :func:`~fedif_flower.run.outside_code.modules_of` returns them.
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
    """Return the :func:`tensors_hash`; an empty text if there are no tensors."""
    data = list(tensors)
    if not data:
        return ""
    return tensors_hash(data)


def tensors_hash(tensors: Iterable[Tensor]) -> str:
    """Return the SHA-256 of tensors' types, shapes and values, whatever their memory layout."""
    import torch  # Imported here: who only checks a statement should not wait for it.

    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def code_hash(modules: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the SHA-256 of the code that a run may execute: this package and other modules."""
    if not modules:
        return package_hash()
    hashes = f"{package_hash()} {modules_hash(modules)}"
    return hashlib.sha256(hashes.encode()).hexdigest()


def modules_hash(modules: Mapping[str, str]) -> str:
    """Return one SHA-256 for the names and hashes of all modules."""
    return content_key(dict(modules))


@lru_cache(maxsize=1)
def package_hash() -> str:
    """Return the SHA-256 of this package's source files, without those that bundles leave out."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE)
        if name.as_posix() not in _NOT_IN_BUNDLES and name.parts[0] not in _NOT_IN_BUNDLES:
            digest.update(f"{name.as_posix()} {path.stat().st_size}\n".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()
