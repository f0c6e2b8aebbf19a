"""The server asks a keeper on another host over HTTPS."""

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
# How long to wait for the keeper's policy, for which a run asks before it starts.
FIRST_SECONDS = 30.0
PAUSE = 0.5  # Seconds between two tries.
MOST_TEXT = 2**20  # The most bytes of an answer that is not an array of numbers.
# The most characters of a refusal that are shown. A refusal may name nodes with their reasons.
MOST_REASON = 600
UNREADABLE = "the keeper's answer is not readable"


def trusting(protocol: int, trusted: str, certificate: str, key: str, keys: str) -> ssl.SSLContext:
    """Return a TLS context that trusts the holder of one certificate, and nobody else.

    Other holders of certificates of the same authority are not trusted.

    Parameters
    ----------
    protocol : int
        ``ssl.PROTOCOL_TLS_CLIENT`` or ``ssl.PROTOCOL_TLS_SERVER``.
    trusted : str
        The path of the other side's certificate, which is trusted.
    certificate, key : str
        The paths of one's own certificate, and of its private key.
    keys : str
        The names of the settings that set the three paths, for error messages.

    Raises
    ------
    ConfigError
        If a file cannot be used.
    """
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # With this flag, the trusted certificate is enough by itself, without its authority's.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.verify_mode = ssl.CERT_REQUIRED
    trusted_path = str(Path(trusted).expanduser())
    certificate_path = str(Path(certificate).expanduser())
    key_path = str(Path(key).expanduser())
    for path in (trusted_path, certificate_path, key_path):
        with refused_as(ConfigError, f"{keys}: {path} cannot be read"):
            read_whole(Path(path))
    paths = f"{trusted_path}, {certificate_path}, {key_path}"
    with refused_as(ConfigError, f"{keys} = {paths}"):  # An SSLError does not name the file.
        context.load_verify_locations(trusted_path)
        context.load_cert_chain(certificate_path, key_path)
    return context


class HttpKeeper:
    """Asks a :class:`~fedif_consortium.masking.keeper.Keeper` at a URL.

    It tries again while no connection to the keeper can be made. All methods raise KeeperError if
    the keeper refuses, does not answer in time, or gives a malformed answer.

    Parameters
    ----------
    url : str
        The keeper's URL.
    context : SSLContext
        The TLS context that :func:`trusting` returns.
    seconds : float
        How long one answer may take, with all tries, > 0.

    Attributes
    ----------
    on_answer : callable
        Called after each answer with the kind of question, and the seconds that the answer took
        with all tries.
    """

    trial_secret = ""

    def __init__(self, url: str, context: ssl.SSLContext, seconds: float) -> None:
        self.url = url.rstrip("/")
        self._seconds = seconds
        self.on_answer: Callable[[str, float], object] = lambda *_: None
        # Each request makes a new connection, since the keeper may close one that is idle.
        limits = httpx.Limits(max_keepalive_connections=0)
        self._client = httpx.Client(verify=context, trust_env=False, limits=limits)
        # The sizes of the open round, by which the length of each answer is checked.
        self._num_members = 0  # m
        self._num_params = 0  # d

    @cached_property
    def policy(self) -> KeeperPolicy:
        """The keeper's policy, which is asked for once."""
        body = self._ask("policy/0/0", seconds=min(self._seconds, FIRST_SECONDS))
        with refused_as(KeeperError, UNREADABLE):
            return KeeperPolicy.model_validate_json(body)

    def open_round(
        self, run: int, server_round: int, length: int, boxes: Mapping[int, bytes]
    ) -> OpenedRound:
        """Hand in all boxes of a round, by node id; ``length`` is the number d of parameters."""
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
        """Return the inner products ``[m]`` of the masks with a vector ``[d]``, rounded."""
        return self._ask_for_ring(f"products/{run}/{server_round}", vector, self._num_members)

    def weighted_sum(self, run: int, server_round: int, weights: Ring) -> Ring:
        """Return the sum ``[d]`` of the masks times weights ``[m]``, rounded; a round has one."""
        return self._ask_for_ring(f"sum/{run}/{server_round}", weights, self._num_params)

    def close(self) -> str:
        """Have the keeper delete the open round's seeds; return its log's last hash, in hex."""
        return printable(self._ask("close/0/0").decode(errors="replace"))

    def _ask_for_ring(self, path: str, question: Ring, count: int) -> Ring:
        """Return an answer of exactly ``count`` numbers."""
        num_bytes = 8 * count
        body = self._ask(path, to_bytes(question), num_bytes)
        if len(body) != num_bytes:
            raise KeeperError(f"the keeper's answer has {len(body)} bytes, not {count} numbers")
        return to_ring(body)

    def _ask(
        self, path: str, body: bytes = b"", most_bytes: int = 0, seconds: float | None = None
    ) -> bytes:
        """Return the body of an answer; try again while no connection can be made.

        Parameters
        ----------
        path : str
            The question, the run and the round.
        body : bytes
            The request's body.
        most_bytes : int
            The most bytes of an answer; :data:`MOST_TEXT` are always allowed.
        seconds : float, optional
            How long the answer may take; ``None``: as long as any answer.
        """
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
        """Return the body of an answer to one request; ``end`` is its deadline (monotonic clock).

        The body has at most ``most_bytes``.
        """
        seconds_left = max(0.01, end - time.monotonic())
        limits = httpx.Timeout(seconds_left, connect=min(seconds_left, CONNECT_SECONDS))
        url = f"{self.url}/{path}"
        content = bytearray()
        with self._client.stream("POST", url, content=body, timeout=limits) as response:
            for piece in response.iter_raw():
                content += piece
                if len(content) > most_bytes:
                    raise KeeperError(f"the keeper's answer is longer than {most_bytes} bytes")
                # httpx limits the time for each piece, but not for all pieces together.
                if time.monotonic() > end:
                    raise KeeperError(f"the keeper at {self.url} is too slow")
        if response.status_code == 200:
            return bytes(content)
        reason = printable(content.decode(errors="replace"), MOST_REASON)
        raise KeeperError(f"the keeper at {self.url}: status {response.status_code}: {reason}")


def _is_absent(error: httpx.TransportError) -> bool:
    """Return whether no connection could be made, for another reason than a wrong certificate."""
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return False
    return isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)


AnyKeeper = Keeper | HttpKeeper
