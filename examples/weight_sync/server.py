"""server.py PORT: holds a copy of the trainer's model, and says after each message what it computes."""

import json
import socket
import sys

import torch
import wire
from thinwire import delta


def main(port):
    torch.manual_seed(1)  # other weights than the trainer's, at first
    model = wire.make_model()
    subscriber = delta.Subscriber(model.state_dict())
    with socket.create_connection(("127.0.0.1", port)) as connection:
        while True:
            wire.send(connection, json.dumps(subscriber.version).encode())
            try:
                subscriber.apply(wire.receive(connection))
            except EOFError:
                return
            with torch.no_grad():
                logits = model(wire.prompts())
            wire.send(connection, logits.view(torch.uint8).numpy().tobytes())


if __name__ == "__main__":
    main(int(sys.argv[1]))
