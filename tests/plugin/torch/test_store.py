"""delta/store.py: streams as files, on a disk and in a store of fsspec's."""

import pytest
import torch
from thinwire import delta
from thinwire.delta.store import Store

fsspec = pytest.importorskip("fsspec")


@pytest.fixture(params=["memory", "file"])
def url(request, tmp_path):
    made = "%s://%s/run" % (request.param, tmp_path)
    yield made
    if request.param == "memory":
        fsspec.filesystem("memory").rm(made, recursive=True)


def names(url):
    files, root = fsspec.core.url_to_fs(url)
    return sorted(path.rpartition("/")[2] for path in files.ls(root, detail=False))


def follow(subscriber, store):
    found = store.since(subscriber.version)
    for one in found:
        subscriber.apply(one)
    return len(found)


def same(subscriber, weights):
    return all(torch.equal(subscriber.weights[name], one) for name, one in weights.items())


def test_a_subscriber_follows_and_one_comes_late(url):
    weights = {"up": torch.randn(50, 40).bfloat16(), "norm": torch.ones(7)}
    publisher, store, reader = delta.Publisher(weights), Store(url, every=3), Store(url)
    assert reader.since(None) == []
    subscriber = delta.Subscriber({})
    for number in range(1, 9):
        store.put(publisher)
        assert follow(subscriber, reader) == 1 and same(subscriber, weights)
        assert subscriber.version == publisher.version and follow(subscriber, reader) == 0
        weights = {name: one * 1.01 for name, one in weights.items()}
        publisher.publish(weights)
    publisher.publish(weights)
    store.put(publisher)  # two versions at once
    assert follow(subscriber, reader) == 2 and same(subscriber, weights)
    assert names(url) == ["0000000003.all.twd", "0000000003.twd", "0000000004.twd", "0000000005.twd",
                          "0000000006.all.twd", "0000000006.twd", "0000000007.twd", "0000000008.twd",
                          "0000000009.twd", "0000000010.twd"]
    late = delta.Subscriber({})
    assert follow(late, reader) == 5 and same(late, weights)
    behind = delta.Subscriber({})
    behind.version = delta.Version(1, "0" * 16)  # what led on from it is no more
    assert follow(behind, reader) == 5 and same(behind, weights)


def test_another_run_begins_anew(url):
    weights = {"up": torch.randn(50, 40).bfloat16()}
    publisher, store = delta.Publisher(weights), Store(url, every=2)
    subscriber = delta.Subscriber({})
    for _ in range(4):
        publisher.publish({"up": torch.randn(50, 40).bfloat16()})
        store.put(publisher)
    follow(subscriber, store)
    other = delta.Publisher(weights)
    Store(url).put(other)
    assert names(url) == ["0000000001.all.twd"]
    assert follow(subscriber, store) == 1 and same(subscriber, weights)


def test_a_file_that_is_not_complete_changes_nothing(url):
    weights = {"up": torch.randn(50, 40).bfloat16()}
    publisher, store, subscriber = delta.Publisher(weights), Store(url), delta.Subscriber({})
    store.put(publisher)
    follow(subscriber, store)
    publisher.publish({"up": weights["up"] * 2})
    store.put(publisher)
    files, root = fsspec.core.url_to_fs(url)
    path = root + "/0000000002.twd"
    whole = files.cat_file(path)
    files.pipe_file(path, whole[:-5])
    with pytest.raises(delta.DeltaError, match="ends too early"):
        follow(subscriber, store)
    assert same(subscriber, weights)
    files.pipe_file(path, whole)
    assert follow(subscriber, store) == 1 and same(subscriber, {"up": weights["up"] * 2})
