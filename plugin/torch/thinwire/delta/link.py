"""A stream's messages over TCP, each after its length. Both ends prove to each other that they know
a secret, which they got in some other way. With TW_NET_ENCRYPT=y, or sealed=True, messages are sealed:
encrypted and authenticated. If only one end seals, both ends raise an error.

    serve(accept(listener, secret), publisher.since)          the trainer, for each subscriber
    follow(connect(address, secret), subscriber)              the inference server
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
_PROOF_SEC = 5.0  # longest wait for a proof: a silent stranger must not keep the next connection waiting
Since = Callable[[Version | None], Sequence[bytes]]  # returns the messages from a version to the newest one


class Link:
    """A connection that carries messages. OSError if it breaks, if nothing comes for `timeout_sec`, or if a
    message is not as the other end has sealed it. The last error also closes the connection."""

    def __init__(self, connection: socket.socket, timeout_sec: float):
        self._connection, self._end = connection, C.c_void_p()
        self._sealed = True  # proofs are always sealed; meet() then sets whether messages are
        self._out, self._in = (C.create_string_buffer(_PIECE_BYTES + _TAG_BYTES) for _ in range(2))
        self.keep_time(timeout_sec)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __del__(self) -> None:
        capi.lib().tw_sealed_destroy(self._end)

    def keep_time(self, timeout_sec: float) -> None:
        self._connection.settimeout(timeout_sec)

    def meet(self, secret: str, connects: bool, sealed: bool | None) -> None:
        """Prove the secret to the other end, and check that the other end knows it. OSError if it does not.
        RuntimeError if it does, but only one of the two ends seals. Both errors close the connection."""
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
        """Exchange proofs of the secret. Returns whether the other end seals messages."""
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
        """Returns the next n bytes, unsealed, in memory that the next call overwrites."""
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
        """Close the connection. A send() or receive() in another thread ends with an error."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


def accept(listener: socket.socket, secret: str, timeout_sec: float = 600.0,
           sealed: bool | None = None) -> Link:
    """Returns the next connection that proves the secret; others are closed. The listener's own
    timeout limits the wait for a connection; timeout_sec is the link's. sealed: None to do as TW_NET_ENCRYPT
    says. RuntimeError if the other end knows the secret but differs in `sealed`."""
    while True:
        link = Link(listener.accept()[0], min(_PROOF_SEC, timeout_sec))
        with contextlib.suppress(OSError):
            link.meet(secret, False, sealed)
            link.keep_time(timeout_sec)
            return link


def connect(address: tuple[str, int], secret: str, timeout_sec: float = 600.0,
            sealed: bool | None = None) -> Link:
    """Connect to a process that calls accept(). ConnectionError if that process does not prove the secret."""
    link = Link(socket.create_connection(address, timeout_sec), timeout_sec)
    link.meet(secret, True, sealed)
    return link


def serve(link: Link, since: Since) -> Sequence[bytes]:
    """Answer one fetch() of the other end: send the messages that it lacks. Returns these messages."""
    have = json.loads(link.receive(1 << 10))
    messages = since(have and Version(*have))
    link.send(json.dumps(len(messages)).encode())
    for one in messages:
        link.send(one)
    return messages


def fetch(link: Link, have: Version | None) -> list[bytes]:
    """Ask for the messages that lead from version `have` (None: no weights yet) to the newest."""
    link.send(json.dumps(have).encode())
    return [link.receive() for _ in range(json.loads(link.receive(64)))]


def follow(link: Link, subscriber: Subscriber) -> list[bytes]:
    """Fetch and apply the messages that the subscriber lacks. Returns them. A DeltaError sets the
    subscriber's version to None, so the next call fetches all weights."""
    messages = fetch(link, subscriber.version)
    try:
        for one in messages:
            subscriber.apply(one)
    except DeltaError:
        subscriber.version = None
        raise
    return messages
