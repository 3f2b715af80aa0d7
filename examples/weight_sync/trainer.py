"""trainer.py [--steps N]: trains a small model, and sends each version of its weights to server.py."""

import argparse
import pathlib
import secrets
import socket
import subprocess
import sys

import torch
import wire
from thinwire import delta
from thinwire.delta.link import accept, serve


def step(model, optimizer):
    tokens = torch.randint(64, (4, 1)).add(3 * torch.arange(16)) % 64
    loss = model(tokens, labels=tokens).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=8)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    model = wire.make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    publisher, secret = delta.Publisher(model.state_dict()), secrets.token_hex(32)
    n_bytes = sum(one.nbytes for one in model.state_dict().values())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        port, program = listener.getsockname()[1], pathlib.Path(__file__).with_name("server.py")
        server = subprocess.Popen([sys.executable, str(program), str(port)], stdin=subprocess.PIPE, text=True)
        print(secret, file=server.stdin, flush=True)
        try:
            link = accept(listener, secret)
            for number in range(1, steps + 2):
                sent = sum(map(len, serve(link, publisher.since)))
                assert link.receive() == wire.logits(model), "the server computes something else"
                print("version %d: %d bytes of %d, logits equal, bit for bit" % (number, sent, n_bytes),
                      flush=True)
                if number <= steps:
                    step(model, optimizer)
                    publisher.publish(model.state_dict())
            link.close()
        finally:
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()


if __name__ == "__main__":
    main()
