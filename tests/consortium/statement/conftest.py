from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


@pytest.fixture(scope="session")
def key() -> Ed25519PrivateKey:
    """A key that signs statements."""
    return Ed25519PrivateKey.generate()
