"""What both ends of the example share: a model, and bytes with their length before them."""

import struct

import torch

LENGTH = struct.Struct("<Q")


def make_model():
    return torch.nn.Sequential(torch.nn.Embedding(64, 64), torch.nn.Linear(64, 256), torch.nn.GELU(),
                               torch.nn.Linear(256, 64)).bfloat16()


def prompts():
    return torch.arange(64)


def send(connection, data):
    connection.sendall(LENGTH.pack(len(data)) + data)


def receive(connection):
    """The next bytes; EOFError at the end, or where they break off."""
    return _take(connection, LENGTH.unpack(_take(connection, LENGTH.size))[0])


def _take(connection, n):
    data = bytearray()
    while len(data) < n:
        part = connection.recv(min(n - len(data), 1 << 20))
        if not part:
            raise EOFError("the other end has closed")
        data += part
    return bytes(data)
