"""The reference shows each parameter's own default."""

from __future__ import annotations

import griffe
import pytest

from tests.test_docs_names import DOCS

EXTENSION = str(DOCS / "tools" / "docstrings.py")


@pytest.fixture(scope="module")
def package():
    extensions = griffe.load_extensions(EXTENSION)
    return griffe.load("fedif_flower", docstring_parser="numpy", extensions=extensions)


def defaults_shown(obj):
    """Return what the reference shows as each parameter's default."""
    return {
        parameter.name: parameter.value
        for section in obj.docstring.parsed
        if section.kind is griffe.DocstringSectionKind.parameters
        for parameter in section.value
    }


@pytest.mark.parametrize(
    ("path", "defaults"),
    [
        ("server.setup.Setup", {"max_num_examples": "10000000", "max_examples_ratio": "10.0"}),
        ("stages.server_optimizer.FedAdam", {"beta1": "0.9", "beta2": "0.99"}),
        ("aggregators.sign_guard.SignGuard", {"shortest": "0.1", "longest": "3.0"}),
    ],
)
def test_parameters_of_one_entry_have_their_own_defaults(package, path, defaults):
    """A dataclass's defaults and a function's, of names that share type and lines."""
    shown = defaults_shown(package[path])
    assert {name: shown[name] for name in defaults} == defaults
