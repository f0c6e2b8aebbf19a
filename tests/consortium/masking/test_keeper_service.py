"""A keeper over TLS on loopback: what it answers, and what it refuses a server that attacks."""

from __future__ import annotations

import contextlib
import itertools
import socket
import ssl
import time

import httpx
import numpy as np
import pytest

from fedif_consortium.masking import (
    SignSketch,
    check_step,
    check_sum,
    decode_products,
    decode_step,
    encode_vectors,
    encode_weights,
    products,
)
from fedif_consortium.masking.boxes import open_box
from fedif_consortium.masking.keeper_client import HttpKeeper
from fedif_consortium.masking.keeper_store import read_log
from fedif_flower.errors import (
    EvidenceError,
    KeeperError,
    RefusedByPolicyError,
    StorageError,
)
from tests.runtime.keeping import RUN, Keeping, boxes

UPDATES = np.random.default_rng(0).normal(size=(5, 1000)).astype(np.float32)
ROUNDS = itertools.count(1)
DIRECTIONS = np.random.default_rng(1).normal(size=(6, 1000))


@pytest.fixture(scope="module")
def keeping(tmp_path_factory):
    return Keeping(tmp_path_factory.mktemp("keeper"))


@pytest.fixture(scope="module")
def served(keeping):
    with keeping.serving() as client:
        yield client


@pytest.fixture
def opened(keeping, served):
    """Give a round that is open, and its masked vectors."""
    server_round = next(ROUNDS)
    masked = keeping.mask_all(UPDATES, server_round)
    answer = served.open_round(RUN, server_round, 1000, boxes(masked))
    assert answer.nodes == tuple(masked)
    return server_round, np.array([one.vector for one in masked.values()])


def test_a_whole_round(keeping, served, opened):
    server_round, vectors = opened
    sketches = served.sketches(RUN, server_round)
    sketch = SignSketch(sketches.seed, 62, 1000)
    encoded, exponents = encode_vectors(DIRECTIONS[:3])
    answers = served.products(RUN, server_round, encoded)
    own = np.array([products(vector, encoded) for vector in vectors])
    scores = decode_products(own - answers, exponents)
    np.testing.assert_allclose(scores, UPDATES @ DIRECTIONS[:3].T, atol=1e-3)
    weights, total = encode_weights(np.arange(1.0, 6.0))
    masks = served.weighted_sum(RUN, server_round, weights)
    check_sum(masks, weights, sketch, sketches.values, encoded, answers)
    step = decode_step(np.sum(weights[:, None] * vectors, axis=0) - masks, total)
    np.testing.assert_allclose(step, np.arange(1.0, 6.0) @ UPDATES, atol=1e-4)
    check_step(step, np.arange(1.0, 6.0), np.linalg.norm(UPDATES, axis=1))
    head = served.close_round(RUN, server_round)
    entries, last = read_log(keeping.store.folder / "log.txt")
    assert head == last
    assert [entry["asked"] for entry in entries[-5:]] == [
        "open", "sketches", "products", "sum", "close",
    ]  # fmt: skip
    with pytest.raises(KeeperError, match="keeps no round"):
        served.sketches(RUN, server_round)


# -- others, and requests that are none -----------------------------------------------------------


def test_nobody_else_is_answered(keeping, served):
    with pytest.raises(KeeperError, match="gave no answer in 1 s"):
        keeping.client("stranger", seconds=1.0).policy()
    context = ssl.create_default_context(cafile=keeping.folder / "keeper.crt")
    with httpx.Client(verify=context) as nobody, pytest.raises(httpx.TransportError):
        nobody.get(f"{served.url}/policy")
    with socket.create_connection(("127.0.0.1", keeping.port)) as plain:
        plain.sendall(b"GET /policy HTTP/1.1\r\nHost: keeper\r\n\r\n")
        plain.settimeout(30)
        with contextlib.suppress(ConnectionError):
            assert b"policy" not in plain.recv(1000)


def test_a_keeper_with_another_certificate_is_not_believed(keeping, served):
    files = (
        keeping.folder / f"{n}" for n in ("stranger.crt", "keeper-client.crt", "keeper-client.key")
    )
    before = time.monotonic()
    with pytest.raises(KeeperError, match="this is not the keeper"):
        HttpKeeper(served.url, *files, seconds=60.0).policy()
    assert time.monotonic() - before < 30


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/sum/1/1", b"", 404),
        ("POST", "/sum/1/1", b"", 409),
        ("POST", "/open/1/1", b'{"length": 1, "boxes": {"1": "zz"}}', 409),
        ("POST", "/open/1/1", b"[" * 100_000, 409),
        ("POST", "/products/ROUND", bytes(8001), 409),
        ("POST", "/open/1/1", b'{"length": 0, "boxes": {}}', 403),
        ("POST", "/sum/ROUND", np.array([2**24, 0, 0, 0, 0], "<u8").tobytes(), 403),
        ("POST", "/sketches/1/1", b"x", 413),
        ("POST", "/products/ROUND", bytes(32_008), 413),
        ("POST", "/sum/ROUND", iter([bytes(40)]), 413),  # It states no length.
    ],
)
def test_what_is_no_request_is_refused_and_the_keeper_goes_on(
    served, opened, method, path, body, status
):
    url = served.url + path.replace("ROUND", f"{RUN}/{opened[0]}")
    answer = served._client.request(method, url, content=body)
    assert answer.status_code == status
    assert answer.json()["error"]
    assert served.policy()


# -- what it keeps --------------------------------------------------------------------------------


def test_only_the_owner_can_read_what_is_kept_and_seeds_are_not_written(keeping, served):
    number = next(ROUNDS)
    masked = keeping.mask_all(UPDATES, number)
    served.open_round(RUN, number, 1000, boxes(masked))
    served.products(RUN, number, encode_vectors(DIRECTIONS[:2])[0])
    folder = keeping.store.folder
    assert folder.stat().st_mode & 0o777 == 0o700
    for file in ("state.json", "log.txt", "box-key"):
        assert (folder / file).stat().st_mode & 0o777 == 0o600
    seeds = [open_box(one.box, keeping.store.key()).hex() for one in masked.values()]
    assert not any(
        seed in file.read_bytes().decode("latin-1") for file in folder.iterdir() for seed in seeds
    )


def test_a_keeper_that_dies_in_mid_round_fails_it_and_the_next_one_works(tmp_path):
    keeping = Keeping(tmp_path, policy="largest-known-share = 0.07")  # 62 of the sketch, and 8.
    first, vectors = keeping.mask_all(UPDATES), encode_vectors(DIRECTIONS)[0]
    with keeping.serving() as client:
        client.open_round(RUN, 1, 1000, boxes(first))
        client.products(RUN, 1, vectors[:4])
    keeper = keeping.keeper()
    with pytest.raises(KeeperError, match="keeps no round 1"):
        keeper.weighted_sum(RUN, 1, encode_weights(np.ones(5))[0])
    # Opened again, the same masks would be summed twice.
    with pytest.raises(RefusedByPolicyError, match="a round is opened once"):
        keeper.open_round(RUN, 1, 1000, boxes(first))
    second = keeping.mask_all(UPDATES, 2)
    assert len(keeper.open_round(RUN, 2, 1000, boxes(second)).nodes) == 5
    keeper.products(RUN, 2, vectors[:3])
    keeper.weighted_sum(RUN, 2, encode_weights(np.ones(5))[0])
    keeper.close_round(RUN, 2)
    keeper = keeping.keeper()  # What the run asked for counts on.
    keeper.open_round(RUN, 3, 1000, boxes(keeping.mask_all(UPDATES, 3)))
    with pytest.raises(RefusedByPolicyError, match=r"largest-known-share = 0\.07; asked: 71"):
        keeper.products(RUN, 3, vectors[4:])


def test_the_end_of_a_log_that_was_torn_off_is_written_over(tmp_path, caplog):
    keeping = Keeping(tmp_path)
    keeper = keeping.keeper()
    with pytest.raises(RefusedByPolicyError):
        keeper.open_round(RUN, 1, 1000, {})
    file = keeping.store.folder / "log.txt"
    whole = file.read_text()
    file.write_text(whole + whole[:50])
    assert keeping.store.log().head == keeper.log.head
    assert file.read_text() == whole
    assert "torn off" in caplog.text
    file.write_text(whole.replace("least", "most"))
    with pytest.raises(EvidenceError, match="line 1 of the keeper's log"):
        keeping.store.log()


@pytest.mark.parametrize("content", ["", '{"vectors": {"1": []}, "last-rounds": {}}'])
def test_a_damaged_state_is_named(tmp_path, content):
    store = Keeping(tmp_path).store
    (store.folder / "state.json").write_text(content)
    with pytest.raises(StorageError, match=r"state\.json is damaged"):
        store.load()
