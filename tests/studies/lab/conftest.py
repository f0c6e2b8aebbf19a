from __future__ import annotations

import pytest

from fedif_studies import rows


@pytest.fixture
def _asked_anew():
    """Let the revision of the loaded code be asked again in a test, and again after it."""
    rows.loaded_revision.cache_clear()
    yield
    rows.loaded_revision.cache_clear()
