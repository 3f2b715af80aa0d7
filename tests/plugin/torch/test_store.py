"""delta/store.py: streams as files, on a disk, in a store of fsspec's, and on a server that speaks S3."""

import importlib.util
import logging

import pytest
import torch
from thinwire import delta
from thinwire.delta.store import Store

fsspec = pytest.importorskip("fsspec")
S3 = all(importlib.util.find_spec(name) for name in ("s3fs", "moto", "flask", "flask_cors"))


@pytest.fixture(scope="module")
def s3():
    """A server, and a client of it."""
    if not S3:
        pytest.skip("s3fs or moto's server is not installed")
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    # What Store(url) is without options, as with the variables that people set.
    fsspec.config.conf["s3"] = {"key": "key", "secret": "secret", "client_kwargs": {
        "endpoint_url": "http://%s:%d" % server.get_host_and_port(), "region_name": "us-east-1"}}
    files = fsspec.filesystem("s3")
    files.call_s3("create_bucket", Bucket="bucket")
    yield files
    del fsspec.config.conf["s3"]
    server.stop()


@pytest.fixture(params=["memory", "file", "s3"])
def url(request, tmp_path):
    if request.param == "s3":
        request.getfixturevalue("s3")
        yield "s3://bucket%s/run" % tmp_path
        return
    made = "%s://%s/run" % (request.param, tmp_path)
    yield made
    if request.param == "memory":
        fsspec.filesystem("memory").rm(made, recursive=True)


def names(url):
    files, root = fsspec.core.url_to_fs(url)
    files.invalidate_cache()
    return sorted(path.rpartition("/")[2] for path in files.ls(root, detail=False))


def same(subscriber, weights):
    return all(torch.equal(subscriber.weights[name], one) for name, one in weights.items())


def test_a_subscriber_follows_and_one_comes_late(url):
    weights = {"up": torch.randn(50, 40).bfloat16(), "norm": torch.ones(7)}
    publisher, store, reader = delta.Publisher(weights), Store(url, every=3), Store(url)
    assert reader.since(None) == []
    subscriber = delta.Subscriber({})
    for number in range(1, 9):
        store.put(publisher)
        assert reader.follow(subscriber) == 1 and same(subscriber, weights)
        assert subscriber.version == publisher.version and reader.follow(subscriber) == 0
        weights = {name: one * 1.01 for name, one in weights.items()}
        publisher.publish(weights)
    publisher.publish(weights)
    store.put(publisher)  # two versions at once
    assert reader.follow(subscriber) == 2 and same(subscriber, weights)
    assert names(url) == ["0000000003.all.twd", "0000000003.twd", "0000000004.twd", "0000000005.twd",
                          "0000000006.all.twd", "0000000006.twd", "0000000007.twd", "0000000008.twd",
                          "0000000009.twd", "0000000010.twd"]
    late = delta.Subscriber({})
    assert reader.follow(late) == 5 and same(late, weights)
    behind = delta.Subscriber({})
    behind.version = delta.Version(1, "0" * 16)  # what led on from it is no more
    assert reader.follow(behind) == 5 and same(behind, weights)


def test_another_run_begins_anew(url):
    weights = {"up": torch.randn(50, 40).bfloat16()}
    publisher, store = delta.Publisher(weights), Store(url, every=2)
    subscriber = delta.Subscriber({})
    for _ in range(4):
        publisher.publish({"up": torch.randn(50, 40).bfloat16()})
        store.put(publisher)
    store.follow(subscriber)
    other = delta.Publisher(weights)
    Store(url).put(other)
    assert names(url) == ["0000000001.all.twd"]
    assert store.follow(subscriber) == 1 and same(subscriber, weights)


@pytest.fixture
def two(url):
    """A store, its publisher, and a subscriber that has version 1 of 3, the last two of them weights * 2."""
    weights = {"up": torch.randn(50, 40).bfloat16()}
    publisher, store, subscriber = delta.Publisher(weights), Store(url), delta.Subscriber({})
    store.put(publisher)
    store.follow(subscriber)
    for _ in range(2):
        weights = {"up": weights["up"] * 2}
        publisher.publish(weights)
        store.put(publisher)
    return store, weights, subscriber, *fsspec.core.url_to_fs(url)


def test_a_file_that_is_not_complete_changes_nothing(two):
    """Its error names it; when it is complete, all goes on."""
    store, weights, subscriber, files, root = two
    path, was = root + "/0000000002.twd", subscriber.weights["up"].clone()
    whole = files.cat_file(path)
    for broken in (whole[:-5], whole[:-5] + b"other", whole[:10]):
        files.pipe_file(path, broken)
        with pytest.raises(delta.DeltaError, match="^%s: " % path):
            store.follow(subscriber)
        assert torch.equal(subscriber.weights["up"], was) and subscriber.version.number == 1
    files.pipe_file(path, whole)
    assert store.follow(subscriber) == 2 and same(subscriber, weights)


def test_what_is_not_there_yet_is_waited_for(two):
    """A file that comes, or is listed, after the next one; one that is removed when it was listed."""
    store, weights, subscriber, files, root = two
    path = root + "/0000000002.twd"
    whole = files.cat_file(path)
    files.rm_file(path)
    assert store.follow(subscriber) == 0 and subscriber.version.number == 1
    files.pipe_file(path, whole)
    there = store._there
    store._there = lambda: ([2, 3, 4], [])  # 4 is no more
    assert store.follow(subscriber) == 2 and same(subscriber, weights)
    store._there = lambda: ([2], [1])  # a listing of before
    assert store.follow(subscriber) == 2 and subscriber.version.number == 2
    store._there = there
    assert store.follow(subscriber) == 1 and same(subscriber, weights)


def test_a_reader_that_is_there_first(url):
    reader, subscriber = Store(url), delta.Subscriber({})
    assert reader.follow(subscriber) == 0 and reader.since(None) == []
    weights = {"up": torch.randn(50, 40).bfloat16()}
    Store(url).put(delta.Publisher(weights))
    assert reader.follow(subscriber) == 1 and same(subscriber, weights)


def test_after_a_gap_all_weights_are_written(url):
    """The publisher has kept fewer messages than the store lacks."""
    publisher, store = delta.Publisher({"up": torch.ones(50)}, keep=1), Store(url)
    subscriber = delta.Subscriber({})
    for n in (1, 3):
        store.put(publisher)
        assert store.follow(subscriber) == 1 and same(subscriber, {"up": torch.full((50,), float(n))})
        for new in (n + 1, n + 2):
            publisher.publish({"up": torch.full((50,), float(new))})
    assert names(url) == ["0000000003.all.twd"]


def test_buckets_are_not_made(s3):
    weights = {"up": torch.ones(3)}
    store = Store("s3://no-bucket/run")
    for call in (lambda: store.put(delta.Publisher(weights)), lambda: store.since(None)):
        with pytest.raises(FileNotFoundError, match="^no-bucket/run.*bucket does not exist"):
            call()
    assert not s3.exists("no-bucket")


def test_who_may_not_is_told_of_what(s3, monkeypatch):
    """A key that the server does not know."""
    import moto.settings

    store, publisher = Store("s3://bucket/mine"), delta.Publisher({"up": torch.ones(3)})
    monkeypatch.setattr(moto.settings, "INITIAL_NO_AUTH_ACTION_COUNT", 0.0)
    with pytest.raises(PermissionError, match=r"^bucket/mine/0000000001\.all\.twd: .*Key"):
        store.put(publisher)
    with pytest.raises(PermissionError, match="^bucket/mine: .*Key"):
        store.follow(delta.Subscriber({}))
    monkeypatch.undo()
    store.put(publisher)
    assert store.follow(delta.Subscriber({})) == 1


def test_a_server_that_is_not_there(s3, monkeypatch):
    del s3
    monkeypatch.setitem(fsspec.config.conf["s3"], "client_kwargs", {"endpoint_url": "http://127.0.0.1:9"})
    with pytest.raises(OSError, match="^bucket/run: Could not connect"):
        Store("s3://bucket/run").since(None)
