"""server.py PORT: holds a copy of the trainer's model, and says after each message what it computes. The
secret comes on standard input."""

import sys

import torch
import wire
from thinwire import delta
from thinwire.delta.link import connect, follow


def main(port):
    torch.manual_seed(1)  # other weights than the trainer's, at first
    model = wire.make_model()
    subscriber = delta.Subscriber(model.state_dict())
    link = connect(("127.0.0.1", port), sys.stdin.readline().strip())
    while True:
        try:
            follow(link, subscriber)
        except ConnectionError:  # the trainer has ended
            return
        link.send(wire.logits(model))


if __name__ == "__main__":
    main(int(sys.argv[1]))
