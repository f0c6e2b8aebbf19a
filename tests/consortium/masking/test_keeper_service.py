"""A keeper over TLS on loopback: what it answers, and what it refuses a server that attacks."""

from __future__ import annotations

import contextlib
import itertools
import re
import socket
import ssl
import time

import httpx
import numpy as np
import pytest

from fedif_consortium.evidence.chained_log import read_log
from fedif_consortium.masking.boxes import open_box
from fedif_consortium.masking.keeper_service import MOST_BOXES, keeper_key, read_keeper_config
from fedif_consortium.masking.policy import KeeperPolicy
from fedif_consortium.masking.ring import (
    decode_products,
    decode_step,
    encode_vectors,
    encode_weights,
    products,
)
from fedif_flower.errors import ConfigError, KeeperError, RefusedByPolicyError
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
    encoded, exponents = encode_vectors(DIRECTIONS[:3])
    own = np.array([products(vector, encoded) for vector in vectors])
    scores = decode_products(own - served.products(RUN, server_round, encoded), exponents)
    np.testing.assert_allclose(scores, UPDATES @ DIRECTIONS[:3].T, atol=1e-3)
    weights, total = encode_weights(np.arange(1.0, 6.0))
    masks = served.weighted_sum(RUN, server_round, weights)
    step = decode_step(np.sum(weights[:, None] * vectors, axis=0) - masks, total)
    np.testing.assert_allclose(step, np.arange(1.0, 6.0) @ UPDATES, atol=1e-4)
    head = served.close_round(RUN, server_round)
    entries = read_log(keeping.state / "log.txt")
    assert head == entries[-1]["hash"]
    assert [entry["asked"] for entry in entries[-4:]] == ["open", "products", "sum", "close"]


# -- others, and requests that are none -----------------------------------------------------------


def test_nobody_else_is_answered(keeping, served):
    with pytest.raises(KeeperError, match="gave no answer in 1 s"):
        keeping.client("stranger", seconds=1.0).policy()
    context = ssl.create_default_context(cafile=keeping.folder / "keeper.crt")
    with httpx.Client(verify=context) as nobody, pytest.raises(httpx.TransportError):
        nobody.post(f"{served.url}/policy")
    with socket.create_connection(("127.0.0.1", keeping.port)) as plain:
        plain.sendall(b"POST /policy HTTP/1.1\r\nHost: keeper\r\n\r\n")
        plain.settimeout(30)
        with contextlib.suppress(ConnectionError):
            assert b"policy" not in plain.recv(1000)


def test_a_keeper_with_another_certificate_is_not_believed(keeping, served):
    before = time.monotonic()
    with pytest.raises(KeeperError, match="certificates is not the one that is expected"):
        keeping.client(keeper="stranger").policy()
    assert time.monotonic() - before < 30


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/nothing", b"", 404),
        ("/nothing/1/1", b"", 409),
        ("/sum/1/1", b"", 409),
        ("/open/1/1", b'{"length": 1, "boxes": {"1": "z!"}}', 409),
        ("/open/1/1", b"[" * 100_000, 409),
        ("/products/ROUND", bytes(8001), 409),
        ("/open/1/1", b'{"length": 0, "boxes": {}}', 403),
        ("/sum/ROUND", np.array([2**24, 0, 0, 0, 0], "<u8").tobytes(), 403),
        ("/products/ROUND", bytes(MOST_BOXES + 8), 409),
        ("/sum/ROUND", iter([bytes(40)]), 409),  # It states no length.
    ],
)
def test_what_is_no_request_is_refused_and_the_keeper_goes_on(served, opened, path, body, status):
    url = served.url + path.replace("ROUND", f"{RUN}/{opened[0]}")
    answer = served._client.post(url, content=body)
    assert answer.status_code == status
    assert answer.text
    assert served.policy()


# -- what it keeps --------------------------------------------------------------------------------


def test_only_the_owner_can_read_what_is_kept_and_seeds_are_not_written(keeping, served):
    number = next(ROUNDS)
    masked = keeping.mask_all(UPDATES, number)
    served.open_round(RUN, number, 1000, boxes(masked))
    served.products(RUN, number, encode_vectors(DIRECTIONS[:2])[0])
    folder = keeping.state
    assert folder.stat().st_mode & 0o777 == 0o700
    for file in ("log.txt", "box-key"):
        assert (folder / file).stat().st_mode & 0o777 == 0o600
    key = keeper_key(keeping.state)
    seeds = [
        open_box(one.box, own.public_key(), key).hex()
        for one, own in zip(masked.values(), keeping.keys, strict=True)
    ]
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
    assert len(keeper.open_round(RUN, 2, 1000, boxes(keeping.mask_all(UPDATES, 2))).nodes) == 5
    keeper.products(RUN, 2, vectors[:4])
    keeper.open_round(RUN, 3, 1000, boxes(keeping.mask_all(UPDATES, 3)))
    with pytest.raises(RefusedByPolicyError, match=r"largest-known-share = 0\.07; asked: 71"):
        keeper.products(RUN, 3, vectors[4:5])


# -- its file -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("address", "adress", "unknown key 'adress'; did you mean address?"),
        ("127.0.0.1:0", "127.0.0.1", "address = '127.0.0.1'; allowed: HOST:PORT"),
        ("share = 0.0625", "share = 2.0", "sketch-share = 2.0; allowed: a numb"),
        (
            "sketch-share = 0.0625",
            "least-members = 6",
            "least-members = 6; allowed: at most the 5 of [members]",
        ),
        ("member-1.pub", "nobody.pub", "No such file"),
        ("member-1.pub", "keeper.crt", "[members] member-1 = 'keeper.crt' is no public key"),
        ("member-1.pub", "member-0.pub", "[members] member-1 and member-0 have the same key"),
    ],
)
def test_what_is_wrong_is_named_with_the_file(tmp_path, old, new, reason):
    file = Keeping(tmp_path).write()
    file.write_text(file.read_text().replace(old, new, 1))
    with pytest.raises(ConfigError, match=f"^{re.escape(str(file))}: .*{re.escape(reason)}"):
        read_keeper_config(file)


def test_a_file_without_settings_has_its_paths_beside_it(tmp_path):
    file = Keeping(tmp_path).write()
    file.write_text(re.sub(r"address.*|\[policy\]|sketch.*", "", file.read_text()))
    settings, members, policy = read_keeper_config(file)
    assert settings.certificate == str(tmp_path / "keeper.crt")
    assert (len(members), policy) == (5, KeeperPolicy())
