"""trainer.py [--steps N]: trains a small model, and sends each version of its weights to server.py."""

import argparse
import json
import pathlib
import socket
import subprocess
import sys

import torch
import wire
from thinwire import delta


def step(model, optimizer):
    tokens = torch.randint(64, (32,))
    loss = torch.nn.functional.cross_entropy(model(tokens).float(), (3 * tokens + 1) % 64)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def serve(connection, publisher, model):
    """Send what the server lacks, message after message. Returns the bytes; its logits are the model's."""
    sent = 0
    while True:
        have = json.loads(wire.receive(connection))
        messages = publisher.since(have and delta.Version(*have))
        wire.send(connection, messages[0])
        sent += len(messages[0])
        with torch.no_grad():
            logits = model(wire.prompts()).view(torch.uint8).numpy().tobytes()
        theirs = wire.receive(connection)
        if len(messages) == 1:
            assert theirs == logits, "the server computes something else"
            return sent


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=8)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    model = wire.make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    publisher = delta.Publisher(model.state_dict())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        port, program = listener.getsockname()[1], pathlib.Path(__file__).with_name("server.py")
        server = subprocess.Popen([sys.executable, str(program), str(port)])
        try:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(60)
                for number in range(1, steps + 2):
                    sent = serve(connection, publisher, model)
                    print("version %d: %d bytes of %d, logits equal, bit for bit" % (
                        number, sent, sum(one.nbytes for one in model.state_dict().values())), flush=True)
                    if number <= steps:
                        step(model, optimizer)
                        publisher.publish(model.state_dict())
        finally:
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()


if __name__ == "__main__":
    main()
