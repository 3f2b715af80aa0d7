"""A stream's messages over TCP: bytes with their length before them, for who proves a secret that came by
another way. What is sent is checked, and not encrypted.

    serve(accept(listener, secret), publisher.since)          who trains, for each that follows
    for one in fetch(link, subscriber.version):               who serves, with link = connect(address, secret)
        subscriber.apply(one)
"""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import socket
import struct
from collections.abc import Callable, Sequence

from .message import Version

_LENGTH = struct.Struct("<Q")
_NONCE_BYTES = 32
_PROOF_SEC = 5.0  # a stranger who says nothing keeps others waiting no longer
Since = Callable[[Version | None], Sequence[bytes]]  # the messages that lead from a version to the newest


class Link:
    """A connection, for bytes with their length before them. OSError if it breaks, or says nothing for
    `timeout_sec`."""

    def __init__(self, connection: socket.socket, timeout_sec: float):
        self._connection = connection
        self.keep_time(timeout_sec)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def keep_time(self, timeout_sec: float) -> None:
        self._connection.settimeout(timeout_sec)

    def send(self, data: bytes) -> None:
        self._connection.sendall(_LENGTH.pack(len(data)))
        self._connection.sendall(data)

    def receive(self, most: int = 1 << 62) -> bytes:
        [n] = _LENGTH.unpack(self._take(_LENGTH.size))
        if n > most:
            raise ConnectionError("a message of %d bytes, where %d are the most" % (n, most))
        return self._take(n)

    def _take(self, n: int) -> bytes:
        data = bytearray()
        while len(data) < n:
            part = self._connection.recv(min(n - len(data), 16 << 20))
            if not part:
                raise ConnectionError("the other end has closed")
            data += part
        return bytes(data)

    def close(self) -> None:
        """Whoever waits for it in another thread stops waiting."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


def _proof(secret: str, nonce: bytes) -> bytes:
    return hmac.digest(secret.encode(), nonce, "sha256")


def accept(listener: socket.socket, secret: str, timeout_sec: float = 600.0) -> Link:
    """The next connection that proves the secret; strangers are sent away. The listener has a timeout of its
    own."""
    while True:
        link = Link(listener.accept()[0], min(_PROOF_SEC, timeout_sec))
        nonce = secrets.token_bytes(_NONCE_BYTES)
        with contextlib.suppress(OSError):
            link.send(nonce)
            if hmac.compare_digest(link.receive(_NONCE_BYTES), _proof(secret, nonce)):
                link.keep_time(timeout_sec)
                return link
        link.close()


def connect(address: tuple[str, int], secret: str, timeout_sec: float = 600.0) -> Link:
    link = Link(socket.create_connection(address, timeout_sec), timeout_sec)
    link.send(_proof(secret, link.receive(_NONCE_BYTES)))
    return link


def serve(link: Link, since: Since) -> Sequence[bytes]:
    """Send what the other end's fetch() lacks. Returns it."""
    have = json.loads(link.receive(1 << 10))
    messages = since(have and Version(*have))
    link.send(json.dumps(len(messages)).encode())
    for one in messages:
        link.send(one)
    return messages


def fetch(link: Link, have: Version | None) -> list[bytes]:
    """The messages that lead from this version, or None, to the newest."""
    link.send(json.dumps(have).encode())
    return [link.receive() for _ in range(json.loads(link.receive(64)))]
