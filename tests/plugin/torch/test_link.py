"""delta/link.py: messages over real sockets, for those who prove the secret."""

import concurrent.futures
import socket

import pytest
import torch
from thinwire import delta
from thinwire.delta.link import accept, connect, fetch, serve


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
        connect(listener.getsockname(), "guessed", 5.0).receive()
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
        messages = fetch(link, subscriber.version)
        served.result(30)
        assert len(messages) == n
        for one in messages:
            subscriber.apply(one)
        assert torch.equal(subscriber.weights["up"], weights["up"])
        assert subscriber.version == publisher.version
        if step == 0:
            for _ in range(2):
                weights["up"] = weights["up"] * 1.01
                publisher.publish(weights)
