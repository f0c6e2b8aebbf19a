from __future__ import annotations

import sys
from types import ModuleType

import pytest

from fedif_flower.errors import ConfigError
from fedif_flower.run.stale_superlink import STOP, require_own_code


@pytest.fixture
def app(tmp_path, monkeypatch):
    """An app's package as the server has imported it."""
    package = tmp_path / "bundle" / "weather_app"
    package.mkdir(parents=True)
    for name in ("__init__.py", "task.py"):
        (package / name).write_text(f"# {name}\n")
    module = ModuleType("weather_app")
    module.__file__ = str(package / "__init__.py")
    monkeypatch.setitem(sys.modules, "weather_app", module)
    return package


def test_another_package_of_the_same_name_is_named(tmp_path, app):
    elsewhere = tmp_path / "elsewhere"
    other = elsewhere / "weather_app"
    other.mkdir(parents=True)
    for name in ("__init__.py", "task.py", "more.py"):
        (other / name).write_text(f"# {name}\n")
    require_own_code(["weather_app.task", "nothing.like.it"], elsewhere)  # The same code.
    require_own_code(["weather_app.task"], app.parent)
    (other / "task.py").write_text("# another\n")
    with pytest.raises(ConfigError) as error:
        require_own_code(["weather_app.task"], elsewhere)
    assert str(elsewhere) in str(error.value)
    assert STOP in str(error.value)
    (other / "task.py").unlink()
    with pytest.raises(ConfigError):
        require_own_code(["weather_app"], elsewhere)
