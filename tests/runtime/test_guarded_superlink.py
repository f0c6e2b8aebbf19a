from __future__ import annotations

import pytest

from fedif_flower.runtime.guarded_superlink import MAX_REQUEST_BYTES, is_allowed, is_too_large


def scope(path: str, *, client: str = "10.0.0.5", length: str | None = None, method="POST"):
    headers = [] if length is None else [(b"content-length", length.encode())]
    return {
        "type": "http",
        "path": path,
        "method": method,
        "client": (client, 4000),
        "server": ("10.0.0.1", 9092),
        "headers": headers,
    }


@pytest.mark.parametrize(
    ("length", "refused"),
    [
        ("0", False),
        (str(MAX_REQUEST_BYTES), False),
        (str(MAX_REQUEST_BYTES + 1), True),
        ("-1", True),
        ("many", True),
        (None, True),
    ],
)
def test_a_supernode_s_request_states_a_length_within_bounds(length, refused):
    assert is_too_large(scope("/v1/fleet/push-object", length=length)) == refused
    assert not is_too_large(scope("/v1/runtime/push-object", length=length))


def test_other_hosts_reach_the_supernodes_api_only():
    assert is_allowed(scope("/v1/fleet/pull-messages"))
    assert not is_allowed(scope("/v1/control/start-run"))
    assert is_allowed(scope("/v1/control/start-run", client="127.0.0.1"))
    assert is_allowed(scope("/v1/control/start-run", client="10.0.0.1"))
