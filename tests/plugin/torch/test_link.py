"""delta/link.py: messages over real sockets, for those who prove the secret, sealed or not."""

import concurrent.futures
import contextlib
import socket
import threading

import pytest
import torch
from thinwire import delta
from thinwire.delta.link import accept, connect, fetch, follow, serve


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.settimeout(30.0)
        yield made


@pytest.fixture
def pool():
    with concurrent.futures.ThreadPoolExecutor(1) as made:
        yield made


def test_strangers_get_nothing(listener, pool):
    accepted = pool.submit(accept, listener, "secret", 30.0)
    with pytest.raises(OSError):
        connect(listener.getsockname(), "guessed", 5.0)
    link = connect(listener.getsockname(), "secret", 5.0)
    accepted.result(30).send(b"weights")
    assert link.receive() == b"weights"
    with pytest.raises(ConnectionError, match="7 bytes, where 6"):
        accepted.result().send(b"weights")
        link.receive(6)
    accepted.result().close()
    with pytest.raises(ConnectionError, match="the other end has closed"):
        link.receive()


def test_a_stranger_who_says_nothing_is_sent_away(listener, pool, monkeypatch):
    monkeypatch.setattr("thinwire.delta.link._PROOF_SEC", 0.2)
    accepted = pool.submit(accept, listener, "secret", 60.0)
    with socket.create_connection(listener.getsockname()):
        link = connect(listener.getsockname(), "secret", 30.0)
        accepted.result(30).send(b"weights")
        assert link.receive() == b"weights"


def test_a_subscriber_follows(listener, pool):
    weights = {"up": torch.randn(50, 40).bfloat16()}
    publisher, subscriber = delta.Publisher(weights), delta.Subscriber({})
    accepted = pool.submit(accept, listener, "secret", 30.0)
    link = connect(listener.getsockname(), "secret", 30.0)
    for step, n in enumerate((1, 2, 0)):
        served = pool.submit(serve, accepted.result(30), publisher.since)
        assert len(follow(link, subscriber)) == n
        served.result(30)
        assert torch.equal(subscriber.weights["up"], weights["up"])
        assert subscriber.version == publisher.version
        if step == 0:
            for _ in range(2):
                weights["up"] = weights["up"] * 1.01
                publisher.publish(weights)


class Between:
    """Who stands between both ends, sees all that passes, and may change what the server sends: `change` gets
    the number of bytes that came before, and the next ones; None from it cuts the connection."""

    def __init__(self, listener, change=lambda _at, data: data):
        self._made = socket.create_server(("127.0.0.1", 0))
        self.address, self.change, self.seen = self._made.getsockname(), change, b""
        threading.Thread(target=self._run, args=(listener.getsockname(),), daemon=True).start()

    def _run(self, address):
        client, server = self._made.accept()[0], socket.create_connection(address)
        back = threading.Thread(target=self._pass, args=(client, server, lambda _at, data: data), daemon=True)
        back.start()
        self._pass(server, client, lambda at, data: self.change(at, data))
        back.join(30)
        for one in (self._made, client, server):
            one.close()

    def _pass(self, source, to, change):
        at = 0
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self.seen += data
                passed = change(at, data)
                if passed is None:
                    break
                to.sendall(passed)
                at += len(data)
            to.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def linked(listener, pool, sealed, address=None):
    """The server's link, and the client's."""
    accepted = pool.submit(accept, listener, "secret", 30.0, sealed)
    client = connect(address or listener.getsockname(), "secret", 30.0, sealed)
    server = accepted.result(30)
    yield server, client
    client.close()
    server.close()


MEETING = 64 + 16  # bytes that a server sends before its first message: its hello, and its proof
WEIGHTS = {"up": torch.arange(1 << 19, dtype=torch.float32)}  # more than a piece


def test_nobody_reads_what_is_sealed(listener, pool):
    """A message with all weights, some pieces long, passes as it was; what they are is not to be seen."""
    weights = torch.frombuffer(bytearray(b"weights!" * 1000), dtype=torch.int64)
    message = delta.Publisher({"up": weights}).since(None)[0] * 100
    between = Between(listener)
    for sealed in (False, True):
        with linked(listener, pool, sealed, between.address) as (server, client):
            for data in (message, b"", b"x"):
                sent = pool.submit(server.send, data)
                assert client.receive() == data
                sent.result(30)
            client.send(b"weights!")
            assert server.receive() == b"weights!"
        assert (b"weights!" in between.seen) is not sealed
        between = Between(listener)


CHANGES = {
    "a bit of the length": lambda at, data: flipped(at, data, MEETING + 3),
    "a bit of a message": lambda at, data: flipped(at, data, MEETING + 3000),
    "the last bytes": lambda at, data: flipped(at, data, MEETING + 500_000),
    "a piece again": lambda at, data: data + data if at > MEETING else data,
    "bytes left out": lambda at, data: data[:-1] if at > MEETING + 1000 else data,
}


def flipped(at, data, place):
    place -= at
    return (data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :] if 0 <= place < len(data) else data)


@pytest.mark.parametrize("what", CHANGES)
def test_what_is_changed_on_the_way_changes_no_weights(listener, pool, what):
    publisher, subscriber = delta.Publisher(WEIGHTS), delta.Subscriber({})
    between = Between(listener, CHANGES[what])
    with linked(listener, pool, True, between.address) as (server, client):
        served = pool.submit(serve, server, publisher.since)
        with pytest.raises(ConnectionError, match="changed, repeated or left out on the way"):
            follow(client, subscriber)
        assert subscriber.weights == {} and subscriber.version is None
        with pytest.raises(OSError):  # no more comes of it
            client.receive()
        with contextlib.suppress(OSError):
            served.result(30)
    with linked(listener, pool, True) as (server, client):
        served = pool.submit(serve, server, publisher.since)
        follow(client, subscriber)
        served.result(30)
    assert torch.equal(subscriber.weights["up"], WEIGHTS["up"])


@pytest.mark.parametrize("place", [MEETING + 10, MEETING + 300_000, 2 * (MEETING + WEIGHTS["up"].nbytes)])
def test_what_is_cut_changes_no_weights(listener, pool, place):
    """In a message's length, in a message, or between two of them."""
    message = delta.Publisher(WEIGHTS).since(None)[0]
    between = Between(listener, lambda at, data: data if at < place else None)
    with linked(listener, pool, True, between.address) as (server, client):
        fetched = pool.submit(fetch, client, None)
        assert server.receive() == b"null"
        for one in (b"3", message, message):
            server.send(one)
        if place > 2 * len(message):
            server.close()
        with pytest.raises(ConnectionError, match="the other end has closed"):
            fetched.result(30)


def test_an_old_recording_does_not_open(listener, pool):
    """What a server has said to one is nothing to the next who asks, from the hello on."""
    recorded = []
    between = Between(listener, lambda _at, data: recorded.append(data) or data)
    with linked(listener, pool, True, between.address) as (server, client):
        server.send(b"weights")
        assert client.receive() == b"weights"
    with socket.create_server(("127.0.0.1", 0)) as replaying:
        def replay():
            with replaying.accept()[0] as one:
                one.sendall(b"".join(recorded))
                while one.recv(1000):
                    pass

        replayed = pool.submit(replay)
        with pytest.raises(ConnectionError, match="not what the other end has sealed"):
            connect(replaying.getsockname(), "secret", 30.0, True)
        replayed.result(30)


@pytest.mark.parametrize("server", [False, True])
def test_ends_that_do_not_both_seal_are_refused_by_name(listener, pool, monkeypatch, server):
    """By TW_NET_ENCRYPT of the one, which the other is without; also where somebody says that it has it."""
    monkeypatch.setenv("TW_NET_ENCRYPT", "y")
    accepted = pool.submit(accept, listener, "secret", 30.0, None if server else False)
    with pytest.raises(RuntimeError) as of_client:
        connect(listener.getsockname(), "secret", 30.0, False if server else None)
    with pytest.raises(RuntimeError) as of_server:
        accepted.result(30)
    here = "^this end has TW_NET_ENCRYPT=y .*, and the other end, 127.0.0.1:[0-9]+, has not$"
    there = "^the other end, 127.0.0.1:[0-9]+, has TW_NET_ENCRYPT=y .*, and this end has not$"
    of_server.match(here if server else there)
    of_client.match(there if server else here)


def test_a_hello_that_was_changed_proves_nothing(listener, pool):
    """Nobody can make two ends that ask for seals do without."""
    between = Between(listener, lambda at, data: b"\0" + data[1:] if not at else data)
    listener.settimeout(3.0)
    accepted = pool.submit(accept, listener, "secret", 30.0, True)
    with pytest.raises(ConnectionError):
        connect(between.address, "secret", 30.0, True)
    with pytest.raises(TimeoutError):
        accepted.result(30)
