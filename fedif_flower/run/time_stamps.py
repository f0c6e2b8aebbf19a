"""Heads of the tree of receipts, stamped by somebody with a clock (RFC 3161)."""

from __future__ import annotations

import hashlib
import logging
import time
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx

from fedif_flower.errors import ConfigError, EvidenceError, FedIFError
from fedif_flower.evidence.receipts import SignedHead
from fedif_flower.run.folder import RunFolder
from fedif_flower.storage import make_folder, write_atomically

SECONDS = 15.0  # For one stamp.
_MOST_BYTES = 64 * 1024
logger = logging.getLogger(__name__)


def rfc3161() -> Any:
    """Return the library that knows the format.

    Raises
    ------
    ConfigError
        If it is not installed.
    """
    try:
        return import_module("rfc3161_client")
    except ImportError as error:
        raise ConfigError(
            f"time stamps need rfc3161-client ({error}): pip install 'fedif-flower[timestamps]'"
        ) from error


class TimeStamps:
    """Has heads stamped beside the rounds, which never wait for it.

    While one stamp is waited for, newer heads are left out: the next stamp covers them. The last
    head is stamped at the end of the run.

    Parameters
    ----------
    folder : RunFolder
        The run's; stamps go to its ``time_stamps/``.
    url : str
        Of a server for time stamps.
    seconds : float
        For one stamp.

    Raises
    ------
    ConfigError
        If the library is not installed.
    """

    def __init__(self, folder: RunFolder, url: str, seconds: float = SECONDS) -> None:
        rfc3161()
        self._folder, self._url, self._seconds = folder.time_stamps, url, seconds
        self._pool = ThreadPoolExecutor(1, "time-stamps")
        self._pending: Future[None] | None = None
        self._last: SignedHead | None = None
        self._stamped: SignedHead | None = None  # Of which a stamp was asked for last.

    def on_head(self, head: SignedHead) -> None:
        """Have a head stamped, unless another one is under way."""
        self._last = head
        if self._pending is None or self._pending.done():
            self._stamped = head
            self._pending = self._pool.submit(self._stamp, head)

    def wait(self) -> None:
        """Wait for the stamp that is under way."""
        if self._pending is not None:
            self._pending.result()

    def close(self) -> None:
        """Wait for the last head's stamp, for as long as one may take."""
        self.wait()
        if self._last is not None and self._stamped is not self._last:
            self.on_head(self._last)
            self.wait()
        self._pool.shutdown()

    def _stamp(self, head: SignedHead) -> None:
        try:
            answer = self._ask(head.to_bytes())
            make_folder(self._folder)
            write_atomically(self._folder / stamp_name(head), answer)
        except Exception as error:  # whatever a server elsewhere answers
            reason = error if isinstance(error, FedIFError) else repr(error)
            logger.warning("no time stamp for %d lines of receipts: %s", head.size, reason)

    def _ask(self, content: bytes) -> bytes:
        """Return a stamp of some content.

        Raises
        ------
        EvidenceError
            If the answer is none.
        """
        library, end = rfc3161(), time.monotonic() + self._seconds
        sha256 = library.HashAlgorithm.SHA256
        request = library.TimestampRequestBuilder(content, sha256).build()
        answer = b""
        with httpx.stream(
            "POST",
            self._url,
            content=request.as_bytes(),
            headers={"Content-Type": "application/timestamp-query"},
            timeout=self._seconds,
        ) as response:
            response.raise_for_status()
            for piece in response.iter_bytes():
                answer += piece
                if len(answer) > _MOST_BYTES or time.monotonic() > end:
                    raise EvidenceError(f"{self._url} answers too much, or too slowly")
        stamp = library.decode_timestamp_response(answer)
        if stamp.tst_info.message_imprint.message != hashlib.sha256(content).digest():
            raise EvidenceError(f"{self._url} stamped something else")
        if stamp.tst_info.nonce != request.nonce:
            raise EvidenceError(f"{self._url} answered another question")
        return answer


def stamp_name(head: SignedHead) -> str:
    """Return the name of the file with a head's stamp."""
    return f"head-{head.size:012d}-{head.root.hex()[:8]}.tsr"


def clear_time_stamps(folder: RunFolder) -> None:
    """Remove the stamps of an earlier run in the same place."""
    for path in folder.time_stamps.glob("*.tsr"):
        path.unlink()


def read_stamp(path: Path) -> Any:
    """Return a stamp that was kept.

    Raises
    ------
    EvidenceError
        If it is none.
    """
    try:
        return rfc3161().decode_timestamp_response(path.read_bytes())
    except (OSError, ValueError, RuntimeError) as error:
        raise EvidenceError(f"{path.name} is no time stamp: {error}") from error
