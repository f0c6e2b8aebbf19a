"""A keeper elsewhere, asked over HTTPS."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path

import httpx

from fedif_consortium.masking.keeper import Keeper, OpenedRound, RoundBoxes
from fedif_consortium.masking.policy import KeeperPolicy
from fedif_consortium.masking.ring import Ring, to_bytes, to_ring
from fedif_flower.errors import ConfigError, KeeperError
from fedif_flower.foreign import read_whole, refused_as
from fedif_flower.messages.text import printable

CONNECT_SECONDS = 5.0
FIRST_SECONDS = 30.0  # For the policy, which a run asks for before it starts.
PAUSE = 0.5  # Between two tries, seconds.
MOST_TEXT = 2**20  # Bytes of an answer that is no numbers.
MOST_REASON = 600  # Letters of a refusal that are shown: it names nodes, with a reason for each.
UNREADABLE = "the keeper's answer is not readable"


def trusting(protocol: int, trusted: str, certificate: str, key: str, keys: str) -> ssl.SSLContext:
    """Return a TLS context that believes the holder of one certificate alone.

    Not whoever else that certificate's authority certifies.

    Parameters
    ----------
    protocol : int
        ``ssl.PROTOCOL_TLS_CLIENT`` or ``ssl.PROTOCOL_TLS_SERVER``.
    trusted : str
        Path of that certificate.
    certificate, key : str
        Paths of one's own certificate, and of its private key.
    keys : str
        Names of the settings that set the three, for errors.

    Raises
    ------
    ConfigError
        If a file cannot be used.
    """
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.verify_mode = ssl.CERT_REQUIRED
    trusted_path, certificate_path, key_path = (
        str(Path(path).expanduser()) for path in (trusted, certificate, key)
    )
    for path in (trusted_path, certificate_path, key_path):
        with refused_as(ConfigError, f"{keys}: {path} cannot be read"):
            read_whole(Path(path))
    paths = f"{trusted_path}, {certificate_path}, {key_path}"
    with refused_as(ConfigError, f"{keys} = {paths}"):  # SSLErrors name no file.
        context.load_verify_locations(trusted_path)
        context.load_cert_chain(certificate_path, key_path)
    return context


class HttpKeeper:
    """Asks a :class:`~fedif_consortium.masking.keeper.Keeper` at an address.

    As long as nobody answers at the address, it asks again.

    Parameters
    ----------
    url : str
        Where the keeper is.
    context : SSLContext
        As :func:`trusting` returns it.
    seconds : float
        How long one answer may take, with all tries, > 0.

    Attributes
    ----------
    on_answer : callable
        Called with what was asked and the seconds that the answer took, with all tries.
    """

    trial_secret = ""

    def __init__(self, url: str, context: ssl.SSLContext, seconds: float) -> None:
        self.url = url.rstrip("/")
        self._seconds = seconds
        self.on_answer: Callable[[str, float], object] = lambda *_: None
        # Each request has a connection of its own: none was closed meanwhile by a keeper at rest.
        limits = httpx.Limits(max_keepalive_connections=0)
        self._client = httpx.Client(verify=context, trust_env=False, limits=limits)
        # Of the round that was opened here: every answer's length is known before it comes.
        self._num_members = 0  # m
        self._num_params = 0  # d

    @cached_property
    def policy(self) -> KeeperPolicy:
        """The keeper's limits."""
        body = self._ask("policy/0/0", seconds=min(self._seconds, FIRST_SECONDS))
        with refused_as(KeeperError, UNREADABLE):
            return KeeperPolicy.model_validate_json(body)

    def open_round(
        self, run: int, server_round: int, length: int, boxes: Mapping[int, bytes]
    ) -> OpenedRound:
        """Hand in a round's boxes by node id, all at once; ``length`` is d."""
        size = self.policy.sketch_for(length)
        most_bytes = MOST_TEXT + 16 * len(boxes) * size
        with refused_as(KeeperError, UNREADABLE):
            request = RoundBoxes(length=length, boxes=dict(boxes)).model_dump_json().encode()
            body = self._ask(f"open/{run}/{server_round}", request, most_bytes)
            opened = OpenedRound.model_validate_json(body)
            shape = opened.sketches.shape
        if sorted([*opened.nodes, *opened.refused]) != sorted(boxes):
            raise KeeperError("the keeper's answer is not about the boxes that it got")
        if shape != (len(opened.nodes), size):
            raise KeeperError(f"the keeper's sketches have {shape[1]} sums, not {size}")
        self._num_members = len(opened.nodes)
        self._num_params = length
        return opened

    def products(self, run: int, server_round: int, vector: Ring) -> Ring:
        """Return the masks' products ``[m]`` with a vector ``[d]``."""
        return self._ask_for_ring(f"products/{run}/{server_round}", vector, self._num_members)

    def weighted_sum(self, run: int, server_round: int, weights: Ring) -> Ring:
        """Return the sum ``[d]`` of the masks times weights ``[m]``; a round has one."""
        return self._ask_for_ring(f"sum/{run}/{server_round}", weights, self._num_params)

    def close(self) -> str:
        """Let the keeper delete the last round's seeds; return its log's last hash, in hex."""
        return printable(self._ask("close/0/0").decode(errors="replace"))

    def _ask_for_ring(self, path: str, question: Ring, count: int) -> Ring:
        """Return an answer of so many numbers."""
        num_bytes = 8 * count
        body = self._ask(path, to_bytes(question), num_bytes)
        if len(body) != num_bytes:
            raise KeeperError(f"the keeper's answer has {len(body)} bytes, not {count} numbers")
        return to_ring(body)

    def _ask(
        self, path: str, body: bytes = b"", most_bytes: int = 0, seconds: float | None = None
    ) -> bytes:
        """Return the body of an answer, of at most so many bytes; ask until somebody is there."""
        began = time.monotonic()
        end = began + (seconds or self._seconds)
        while True:
            try:
                answer = self._ask_once(path, body, max(most_bytes, MOST_TEXT), end)
                break
            except httpx.TransportError as error:
                has_time = time.monotonic() + PAUSE < end
                if not (_is_absent(error) and has_time):
                    raise KeeperError(
                        f"the keeper at {self.url} gave no answer in {end - began:g} s, or one of "
                        f"both certificates is not the one that is expected: {error!r}"
                    ) from error
                time.sleep(PAUSE)
        question, _, _ = path.partition("/")
        self.on_answer(question, time.monotonic() - began)
        return answer

    def _ask_once(self, path: str, body: bytes, most_bytes: int, end: float) -> bytes:
        """Return the body of an answer that has come by ``end``, on the monotonic clock."""
        seconds_left = max(0.01, end - time.monotonic())
        limits = httpx.Timeout(seconds_left, connect=min(seconds_left, CONNECT_SECONDS))
        url = f"{self.url}/{path}"
        content = bytearray()
        with self._client.stream("POST", url, content=body, timeout=limits) as response:
            for piece in response.iter_raw():
                content += piece
                if len(content) > most_bytes:
                    raise KeeperError(f"the keeper's answer is longer than {most_bytes} bytes")
                # httpx limits each piece's time, not their sum.
                if time.monotonic() > end:
                    raise KeeperError(f"the keeper at {self.url} is too slow")
        if response.status_code == 200:
            return bytes(content)
        reason = printable(content.decode(errors="replace"), MOST_REASON)
        raise KeeperError(f"the keeper at {self.url}: status {response.status_code}: {reason}")


def _is_absent(error: httpx.TransportError) -> bool:
    """Return whether nobody was there; who shows a wrong certificate is there."""
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return False
    return isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)


AnyKeeper = Keeper | HttpKeeper
