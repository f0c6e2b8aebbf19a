"""The extra ``consortium``: the packages that ``fedif_consortium`` needs and the library does not.

If one of them is missing, a run has only the library's own parts, and its log says so. Settings and
commands that need the extra then raise an error that says what to install.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib.util import find_spec
from typing import ParamSpec, TypeVar

from fedif_flower.errors import ConfigError

# The names under which Python imports the packages of the extra in pyproject.toml. Flower and
# PyTorch install some of them too, so the extra counts as installed only if all are there.
MODULES = (
    "annotated_types",
    "anyio",
    "cryptography",
    "dp_accounting",
    "jinja2",
    "markupsafe",
    "prometheus_client",
    "starlette",
    "tomli_w",
    "uvicorn",
)
INSTALL = "pip install 'fedif-flower[consortium]'"

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def missing_modules() -> list[str]:
    """Return the modules of the extra that are not installed here."""
    return [name for name in MODULES if find_spec(name) is None]


def what_it_needs(subject: str) -> str:
    """Return the sentence that says what to install for ``subject``: a key or a command."""
    missing = ", ".join(missing_modules())
    return f"{subject} needs {INSTALL}; not installed here: {missing}"


def require_extra(subject: str) -> None:
    """Raise ConfigError if the extra is missing, which ``subject``, a key or a command, needs."""
    if missing_modules():
        raise ConfigError(what_it_needs(subject))


def needs_extra(command: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Return ``command`` with a call of :func:`require_extra` before it."""

    @wraps(command)
    def checked(*args: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
        require_extra("this command")
        return command(*args, **options)

    return checked
