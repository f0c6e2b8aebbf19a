"""Small bundles for tests, as Flower makes them."""

from __future__ import annotations

import io
import zipfile

PYPROJECT = """
[project]
name = "app"
version = "1.0"
license = { file = "LICENSE" }
dependencies = ["flwr>=1.41"]
[tool.flwr.app]
publisher = "fedif"
fab-format-version = 1
flwr-version-target = "1.41.0"
[tool.flwr.app.components]
serverapp = "app:server"
clientapp = "app:client"
[tool.flwr.app.config]
rounds = 10
model.size = 2
"""


def zipped(files: dict[str, str | bytes]) -> bytes:
    """Return a zip with these files, always the same one."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return buffer.getvalue()


def bundle(code: str = "x = 1\n", **files: str) -> bytes:
    """Return a bundle of an app with one module, and other files."""
    return zipped({"pyproject.toml": PYPROJECT, "app.py": code, **files})
