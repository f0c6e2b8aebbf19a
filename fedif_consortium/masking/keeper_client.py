"""A keeper elsewhere, asked over HTTPS."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import httpx

from fedif_consortium.masking.interface import OpenedRound, RoundBoxes
from fedif_consortium.masking.policy import KeeperPolicy
from fedif_consortium.masking.ring import Ring, to_bytes, to_ring
from fedif_consortium.masking.settings import MaskingSettings
from fedif_flower.errors import ConfigError, KeeperError, RefusedByPolicyError
from fedif_flower.foreign import refused_as

CONNECT_SECONDS = 5.0
FIRST_SECONDS = 30.0  # For the policy, which a run asks for before it starts.
PAUSE = 0.5  # Between two tries, seconds.
MOST_TEXT = 2**20  # Bytes of an answer that is no numbers.

OnAnswer = Callable[[str, float], object]


class HttpKeeper:
    """A :class:`~fedif_consortium.masking.interface.MaskKeeper` at an address.

    As long as nobody answers at the address, it asks again.

    Parameters
    ----------
    settings : MaskingSettings
        Where the keeper is; its certificate alone is trusted.
    seconds : float
        For one answer, tries and all, > 0.
    on_answer : callable, optional
        Called with what was asked and the seconds that the answer took, tries and all.

    Raises
    ------
    ConfigError
        If a file cannot be used.
    """

    def __init__(
        self, settings: MaskingSettings, seconds: float = 600.0, on_answer: OnAnswer | None = None
    ) -> None:
        self.url = settings.keeper_url.rstrip("/")
        self._seconds = seconds
        self._on_answer = on_answer
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        names = settings.keeper_certificate, settings.client_certificate, settings.client_key
        authority, own, key = (Path(name).expanduser() for name in names)
        try:
            context.load_verify_locations(authority)
            context.load_cert_chain(own, key)
        except OSError as error:  # SSLError is one, and says nothing of the file.
            raise ConfigError(
                f"masking.keeper-certificate, client-certificate, client-key = {names}: {error}"
            ) from error
        # Each request has a connection of its own: none was closed meanwhile by a keeper at rest.
        limits = httpx.Limits(max_keepalive_connections=0)
        self._client = httpx.Client(verify=context, trust_env=False, limits=limits)
        self._policy: KeeperPolicy | None = None
        self._shape = 0, 0  # m and d of the round that was opened here.

    def policy(self) -> KeeperPolicy:
        """Return the keeper's limits."""
        if self._policy is None:
            body = self._ask("GET", "policy", b"", MOST_TEXT, min(self._seconds, FIRST_SECONDS))
            with _readable():
                self._policy = KeeperPolicy.model_validate_json(body)
        return self._policy

    def open_round(
        self, run: int, server_round: int, length: int, boxes: Mapping[int, bytes]
    ) -> OpenedRound:
        """Hand in a round's boxes."""
        size = self.policy().sketch_for(length)
        given = RoundBoxes(length=length, boxes=dict(boxes)).model_dump_json().encode()
        most = MOST_TEXT + 16 * len(boxes) * size
        body = self._ask("POST", f"open/{run}/{server_round}", given, most)
        with _readable():
            found = OpenedRound.model_validate_json(body)
            shape = found.sketches.shape
        if sorted([*found.nodes, *found.refused]) != sorted(boxes):
            raise KeeperError("the keeper's answer is not about the boxes that it got")
        if shape != (len(found.nodes), size):
            raise KeeperError(f"the keeper's sketches have {shape[1]} sums, not {size}")
        self._shape = len(found.nodes), length
        return found

    def products(self, run: int, server_round: int, vectors: Ring) -> Ring:
        """Return the masks' products."""
        members, _ = self._shape
        found = self._numbers(f"products/{run}/{server_round}", vectors, members * len(vectors))
        return found.reshape(members, len(vectors))

    def weighted_sum(self, run: int, server_round: int, weights: Ring) -> Ring:
        """Return the masks' weighted sum."""
        return self._numbers(f"sum/{run}/{server_round}", weights, self._shape[1])

    def close_round(self, run: int, server_round: int) -> str:
        """Let the keeper delete the seeds; return its log's last hash."""
        body = self._ask("POST", f"close/{run}/{server_round}", b"", MOST_TEXT)
        with _readable():
            return body.decode()

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _numbers(self, path: str, given: Ring, count: int) -> Ring:
        """Return an answer of so many numbers."""
        body = self._ask("POST", path, to_bytes(given), 8 * count)
        if len(body) != 8 * count:
            raise KeeperError(f"the keeper's answer has {len(body)} bytes, not {count} numbers")
        return to_ring(body)

    def _ask(
        self, method: str, path: str, body: bytes, most: int, seconds: float | None = None
    ) -> bytes:
        """Return the body of an answer of at most so many bytes; ask until somebody is there."""
        seconds = self._seconds if seconds is None else seconds
        began = time.monotonic()
        while True:
            try:
                answer = self._ask_once(method, path, body, most, began + seconds)
                if self._on_answer is not None:
                    self._on_answer(path.split("/")[0], time.monotonic() - began)
                return answer
            except httpx.TransportError as error:
                away = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
                is_other = "CERTIFICATE_VERIFY_FAILED" in str(error)
                if is_other or not away or time.monotonic() + PAUSE >= began + seconds:
                    raise KeeperError(
                        f"the keeper at {self.url} gave no answer in {seconds:g} s, or one of both "
                        f"certificates is not the one that is expected: {error!r}"
                    ) from error
                time.sleep(PAUSE)

    def _ask_once(self, method: str, path: str, body: bytes, most: int, end: float) -> bytes:
        left = httpx.Timeout(max(0.01, end - time.monotonic()), connect=CONNECT_SECONDS)
        url, content = f"{self.url}/{path}", bytearray()
        with self._client.stream(method, url, content=body, timeout=left) as response:
            for piece in response.iter_raw():
                content += piece
                if len(content) > max(most, MOST_TEXT):
                    raise KeeperError(f"the keeper's answer is longer than {most} bytes")
                if time.monotonic() > end:
                    raise KeeperError(f"the keeper at {self.url} is too slow")
        if response.status_code == 200:
            return bytes(content)
        reason = content.decode(errors="replace")
        if response.status_code == 403:
            raise RefusedByPolicyError(reason)
        raise KeeperError(f"the keeper at {self.url}: status {response.status_code}: {reason}")


def _readable() -> AbstractContextManager[None]:
    """Turn whatever goes wrong with an answer into one error."""
    return refused_as(KeeperError, "the keeper's answer is not readable")
