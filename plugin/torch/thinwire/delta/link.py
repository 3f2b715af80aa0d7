"""A stream's messages over TCP: bytes with their length before them, between two who prove to each other a
secret that came by another way. With TW_NET_ENCRYPT=y, or sealed=True, what is sent is sealed; both ends must
have it, or both are refused.

    serve(accept(listener, secret), publisher.since)          who trains, for each that follows
    follow(connect(address, secret), subscriber)              who serves
"""

from __future__ import annotations

import contextlib
import ctypes as C
import json
import socket
import struct
from collections.abc import Callable, Sequence

from .. import capi, switches
from .message import Version
from .sources import DeltaError
from .stream import Subscriber

_LENGTH = struct.Struct("<Q")
_HELLO_BYTES, _TAG_BYTES, _PIECE_BYTES = 64, 16, 1 << 18
_PROOF_SEC = 5.0  # a stranger who says nothing keeps others waiting no longer
Since = Callable[[Version | None], Sequence[bytes]]  # the messages that lead from a version to the newest


class Link:
    """A connection, for bytes with their length before them. OSError if it breaks, says nothing for
    `timeout_sec`, or brings what the other end has not sealed: then no more comes of it."""

    def __init__(self, connection: socket.socket, timeout_sec: float):
        self._connection, self._end = connection, C.c_void_p()
        self._sealed = True  # both proofs are, whatever comes after them
        self._out, self._in = (C.create_string_buffer(_PIECE_BYTES + _TAG_BYTES) for _ in range(2))
        self.keep_time(timeout_sec)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __del__(self) -> None:
        capi.lib().tw_sealed_destroy(self._end)

    def keep_time(self, timeout_sec: float) -> None:
        self._connection.settimeout(timeout_sec)

    def meet(self, secret: str, connects: bool, sealed: bool | None) -> None:
        """Prove the secret, and have it proven. OSError for a stranger; RuntimeError if the other end has it,
        and only one of both seals. Either closes the connection."""
        sealed = switches.is_on("TW_NET_ENCRYPT") if sealed is None else sealed
        try:
            ends = "the other end, %s:%d," % self._connection.getpeername()[:2], "this end"
            if self._prove(secret, connects, sealed) != sealed:
                raise RuntimeError("%s has TW_NET_ENCRYPT=y (or sealed=True), and %s has not"
                                   % (ends[::-1] if sealed else ends))
        except BaseException:
            self.close()
            raise
        self._sealed = sealed

    def _prove(self, secret: str, connects: bool, sealed: bool) -> bool:
        """Returns whether the other end seals."""
        hello, library = C.create_string_buffer(_HELLO_BYTES), capi.lib()
        capi.check(library.tw_sealed_create(secret.encode(), connects, sealed, hello, C.byref(self._end)),
                   "link")
        self._connection.sendall(hello)
        theirs = bytes(self._take(_HELLO_BYTES))
        if library.tw_sealed_meet(self._end, theirs) < 0:
            raise ConnectionError("the other end's hello is none")
        for sends in (connects, not connects):
            if sends:
                self._put(b"")
            else:
                self._piece(0)
        return bool(theirs[0])

    def send(self, data: bytes) -> None:
        self._put(_LENGTH.pack(len(data)))
        step = _PIECE_BYTES if self._sealed else len(data) or 1
        for at in range(0, len(data), step):
            self._put(data[at : at + step])

    def receive(self, most: int = 1 << 62) -> bytes:
        [n] = _LENGTH.unpack(self._piece(_LENGTH.size))
        if n > most:
            raise ConnectionError("a message of %d bytes, where %d are the most" % (n, most))
        data = bytearray()
        while len(data) < n:
            data += self._piece(min(n - len(data), _PIECE_BYTES))
        return bytes(data)

    def _put(self, piece: bytes) -> None:
        if self._sealed:
            capi.lib().tw_sealed_wrap(self._end, piece, len(piece), self._out)
        self._connection.sendall(memoryview(self._out)[: len(piece) + _TAG_BYTES] if self._sealed else piece)

    def _piece(self, n: int) -> memoryview:
        """The next n bytes, in memory that the next call uses again."""
        if not self._sealed:
            return self._take(n)
        piece = self._take(n + _TAG_BYTES)[:n]
        if capi.lib().tw_sealed_unwrap(self._end, self._in, n, self._in) < 0:
            self.close()
            raise ConnectionError("what came is not what the other end has sealed: it was changed, repeated "
                                  "or left out on the way")
        return piece

    def _take(self, n: int) -> memoryview:
        room, got = memoryview(self._in)[:n], 0
        while got < n:
            part = self._connection.recv_into(room[got:])
            if not part:
                raise ConnectionError("the other end has closed")
            got += part
        return room

    def close(self) -> None:
        """Close the connection. Other threads that wait for it stop waiting."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


def accept(listener: socket.socket, secret: str, timeout_sec: float = 600.0,
           sealed: bool | None = None) -> Link:
    """The next connection that proves the secret; strangers are sent away. The listener has a timeout of its
    own. sealed: None for what TW_NET_ENCRYPT says; RuntimeError for an end that has it otherwise."""
    while True:
        link = Link(listener.accept()[0], min(_PROOF_SEC, timeout_sec))
        with contextlib.suppress(OSError):
            link.meet(secret, False, sealed)
            link.keep_time(timeout_sec)
            return link


def connect(address: tuple[str, int], secret: str, timeout_sec: float = 600.0,
            sealed: bool | None = None) -> Link:
    """Connect to accept(), whose arguments these are. ConnectionError for an end that does not prove the
    secret."""
    link = Link(socket.create_connection(address, timeout_sec), timeout_sec)
    link.meet(secret, True, sealed)
    return link


def serve(link: Link, since: Since) -> Sequence[bytes]:
    """Send the messages that the other end's fetch() lacks. Returns them."""
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


def follow(link: Link, subscriber: Subscriber) -> list[bytes]:
    """Fetch and apply the messages that the subscriber lacks. After a DeltaError its version is None: it
    lacks all."""
    messages = fetch(link, subscriber.version)
    try:
        for one in messages:
            subscriber.apply(one)
    except DeltaError:
        subscriber.version = None
        raise
    return messages
