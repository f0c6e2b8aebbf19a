"""A keeper elsewhere, asked over HTTPS."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from fedif_consortium.masking import KeeperPolicy, OpenedRound, Ring, Sketches
from fedif_consortium.masking.masks import SEED_BYTES
from fedif_flower.errors import ConfigError, KeeperError, RefusedByPolicyError

CONNECT_SECONDS = 5.0
FIRST_SECONDS = 30.0  # For the policy, which a run asks for before it starts.
PAUSE = 0.5  # Between two tries, seconds.
MOST_TEXT = 2**24  # Bytes of an answer in JSON.

OnAnswer = Callable[[str, float], object]


class HttpKeeper:
    """A :class:`~fedif_consortium.masking.interface.MaskKeeper` at an address.

    Where the connection breaks, it asks again: the keeper gives the same answer and counts it once.

    Parameters
    ----------
    url : str
        ``https://HOST:PORT``.
    keeper_certificate : Path
        The keeper's certificate, which alone is trusted.
    certificate, certificate_key : Path
        With which this server shows who it is.
    seconds : float
        For one answer, tries and all, > 0.
    on_answer : callable, optional
        Called with what was asked and the seconds that the answer took, tries and all.

    Raises
    ------
    ConfigError
        If the address is none, or a file cannot be used.
    """

    def __init__(
        self,
        url: str,
        keeper_certificate: Path,
        certificate: Path,
        certificate_key: Path,
        seconds: float = 600.0,
        on_answer: OnAnswer | None = None,
    ) -> None:
        if not url.startswith("https://"):
            raise ConfigError(f"masking.keeper-url = {url!r}; allowed: https://HOST:PORT")
        self.url = url.rstrip("/")
        self._seconds = seconds
        self._on_answer = on_answer
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        try:
            context.load_verify_locations(keeper_certificate)
            context.load_cert_chain(certificate, certificate_key)
        except OSError as error:  # SSLError is one, and says nothing of the file.
            raise ConfigError(
                f"the keeper's certificate {str(keeper_certificate)!r}, or this server's own "
                f"{str(certificate)!r} and {str(certificate_key)!r}: {error}"
            ) from error
        timeout = httpx.Timeout(seconds, connect=CONNECT_SECONDS)
        self._client = httpx.Client(verify=context, timeout=timeout, trust_env=False)
        self._policy: KeeperPolicy | None = None
        self._shapes: dict[tuple[int, int], tuple[int, int]] = {}

    def policy(self) -> KeeperPolicy:
        """Return the keeper's limits."""
        if self._policy is None:
            first = min(self._seconds, FIRST_SECONDS)
            content = _content(self._ask("GET", "/policy", b"", MOST_TEXT, first))
            try:
                self._policy = KeeperPolicy(**content)
            except (ConfigError, TypeError) as error:
                raise KeeperError(f"the keeper's policy is not readable: {error}") from error
        return self._policy

    def open_round(
        self, run: int, server_round: int, length: int, boxes: Mapping[int, bytes]
    ) -> OpenedRound:
        """Hand in a round's boxes."""
        readable = {str(node): box.hex() for node, box in boxes.items()}
        body = json.dumps({"length": length, "boxes": readable}).encode()
        content = _content(self._ask("POST", f"/open/{run}/{server_round}", body, MOST_TEXT))
        try:
            found = OpenedRound(
                tuple(int(node) for node in content["nodes"]),
                tuple(str(name) for name in content["members"]),
                {int(node): str(reason) for node, reason in content["refused"]},
            )
        except (KeyError, TypeError, ValueError) as error:
            raise KeeperError(f"the keeper's answer is not readable: {error!r}") from error
        if sorted([*found.nodes, *found.refused]) != sorted(boxes) or len(found.members) != len(
            found.nodes
        ):
            raise KeeperError("the keeper's answer is not about the boxes that it got")
        self._shapes = {(run, server_round): (len(found.nodes), length)}
        return found

    def sketches(self, run: int, server_round: int) -> Sketches:
        """Return the masks' sketches."""
        members, length = self._shape(run, server_round)
        size = self.policy().sketch_for(length)
        most = SEED_BYTES + 8 * members * size
        body = self._ask("POST", f"/sketches/{run}/{server_round}", b"", most)
        return Sketches(bytes(body[:SEED_BYTES]), _ring(body[SEED_BYTES:], members, size))

    def products(self, run: int, server_round: int, vectors: Ring) -> Ring:
        """Return the masks' products."""
        members, _ = self._shape(run, server_round)
        if not len(vectors):
            return np.empty((members, 0), np.uint64)
        most = 8 * members * len(vectors)
        body = self._ask("POST", f"/products/{run}/{server_round}", _bytes(vectors), most)
        return _ring(body, members, len(vectors))

    def weighted_sum(self, run: int, server_round: int, weights: Ring) -> Ring:
        """Return the masks' weighted sum."""
        _, length = self._shape(run, server_round)
        body = self._ask("POST", f"/sum/{run}/{server_round}", _bytes(weights), 8 * length)
        return _ring(body, length)

    def close_round(self, run: int, server_round: int) -> str:
        """Let the keeper delete the seeds; return its log's last hash."""
        content = _content(self._ask("POST", f"/close/{run}/{server_round}", b"", MOST_TEXT))
        if not isinstance(content.get("log"), str):
            raise KeeperError("the keeper's answer has no hash of its log")
        return str(content["log"])

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _shape(self, run: int, server_round: int) -> tuple[int, int]:
        """Return m and d of the round that was opened here."""
        if (run, server_round) not in self._shapes:
            raise KeeperError(f"round {server_round} of run {run} was not opened")
        return self._shapes[run, server_round]

    def _ask(
        self, method: str, path: str, body: Any, most: int, seconds: float | None = None
    ) -> bytearray:
        """Return the body of an answer of at most so many bytes; ask until there is one."""
        seconds = self._seconds if seconds is None else seconds
        began = time.monotonic()
        end = began + seconds
        while True:
            try:
                answer = self._ask_once(method, path, body, most, end)
                if self._on_answer is not None:
                    self._on_answer(path.split("/")[1], time.monotonic() - began)
                return answer
            except httpx.TransportError as error:
                if (refused := _not_the_keeper(error)) is not None:
                    raise KeeperError(f"this is not the keeper, {self.url}: {refused}") from error
                if time.monotonic() + PAUSE >= end:
                    raise KeeperError(
                        f"the keeper at {self.url} gave no answer in {seconds:g} s, or does not "
                        f"take this server's certificate: {error!r}"
                    ) from error
                time.sleep(PAUSE)

    def _ask_once(self, method: str, path: str, body: Any, most: int, end: float) -> bytearray:
        left = httpx.Timeout(max(0.01, end - time.monotonic()), connect=CONNECT_SECONDS)
        content = bytearray()
        headers = {"content-length": str(len(body))}
        pieces = _pieces(body)
        with self._client.stream(
            method, self.url + path, content=pieces, headers=headers, timeout=left
        ) as response:
            allowed = most if response.status_code == 200 else MOST_TEXT
            for piece in response.iter_raw():
                content += piece
                if len(content) > allowed:
                    raise KeeperError(f"the keeper's answer is longer than {allowed} bytes")
                if time.monotonic() > end:
                    raise KeeperError(f"the keeper at {self.url} is too slow")
        if response.status_code == 200:
            return content
        try:
            reason = str(_content(content)["error"])
        except (KeyError, KeeperError):
            reason = f"status {response.status_code}"
        if response.status_code == 403:
            raise RefusedByPolicyError(reason)
        raise KeeperError(f"the keeper at {self.url}: {reason}")


def _not_the_keeper(error: BaseException | None) -> ssl.SSLCertVerificationError | None:
    """Return why a certificate is not the keeper's, which another try will not change."""
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    return error


def _content(body: bytearray) -> dict[str, Any]:
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise KeeperError(f"the keeper's answer is not readable: {error!r}") from error
    if not isinstance(content, dict):
        raise KeeperError("the keeper's answer is not readable")
    return content


def _bytes(ring: Ring) -> memoryview:
    return np.ascontiguousarray(ring, "<u8").data.cast("B")


def _pieces(body: Any, size: int = 2**20) -> Any:
    for start in range(0, len(body), size):
        yield bytes(body[start : start + size])


def _ring(body: bytearray, *shape: int) -> Ring:
    """Return an answer's numbers."""
    if len(body) != 8 * int(np.prod(shape)):
        raise KeeperError(f"the keeper's answer has {len(body)} bytes, not {shape} numbers")
    return np.frombuffer(body, "<u8").astype(np.uint64, copy=False).reshape(shape)
