"""Which of its addresses a rank tells the others: names of hosts need not resolve, and may be the same on all
nodes."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import ipaddress
import os
import pathlib
import socket
import struct

import torch.distributed as dist

SIOCGIFADDR = 0x8915
LOOPBACK = "127.0.0.1"
# Of a network that is reserved for documentation: the way there is the default route's. Nothing is sent.
ELSEWHERE = ("192.0.2.1", "2001:db8::1")


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _ipv4(device: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket, contextlib.suppress(OSError):
        request = struct.pack("256s", device.encode()[:15])
        return socket.inet_ntoa(fcntl.ioctl(any_socket.fileno(), SIOCGIFADDR, request)[20:24])
    return None


def _ipv6(device: str) -> str | None:
    """The first that is not of the link alone: such a one means nothing on another host."""
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/net/if_inet6").read_text().splitlines():
            digits, _, _, _, _, name = line.split()
            address = ipaddress.ip_address(bytes.fromhex(digits))
            if name == device and not address.is_link_local:
                return str(address)
    return None


def of_device(device: str) -> str | None:
    """None: it has none, or there is no such device, as "mlx5_0:1" is one of UCX's alone."""
    return _ipv4(device) or _ipv6(device)


def towards(host: str) -> str | None:
    """This host's address on the way to another; None if there is no way or no such name."""
    with contextlib.suppress(OSError):
        for family, kind, _, _, address in socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM):
            with socket.socket(family, kind) as any_socket, contextlib.suppress(OSError):
                any_socket.connect(address)
                return any_socket.getsockname()[0]
    return None


def _master(store: dist.Store) -> str:
    """The host of a store; MASTER_ADDR where that is not one over TCP."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return getattr(store, "host", "") or os.environ.get("MASTER_ADDR", "")


def _chosen() -> str | None:
    """Of the first device that the user has named for us or for gloo and that has one."""
    for name in ("TW_NET_DEVICES", "GLOO_SOCKET_IFNAME"):
        for device in os.environ.get(name, "").split(","):
            found = of_device(device.strip()) if device.strip() else None
            if found:
                return found
    return None


def own(store: dist.Store) -> str:
    """Of the device that the user has named, or on the way to the store. The loopback device's on the store's
    own host, where that name says so, and where there is no network."""
    host = _master(store)
    found = _chosen() or (towards(host) if host else None)
    if found:
        return found
    return next(filter(None, map(towards, ELSEWHERE)), LOOPBACK)


def reachable(mine: str, others: list[str]) -> str:
    """What the others can reach this rank by: `mine`, unless that is the loopback device's and theirs are
    not."""
    if not is_loopback(mine):
        return mine
    ways = (towards(other) for other in others if not is_loopback(other))
    return next((way for way in ways if way and not is_loopback(way)), mine)


def place() -> str:
    """The same text in all processes that reach each other over the loopback device, and another elsewhere:
    of boot, network namespace and all addresses, as machines that are copies of each other may share a name
    and more."""
    names = [socket.gethostname()]
    with contextlib.suppress(OSError):
        names.append(pathlib.Path("/proc/sys/kernel/random/boot_id").read_text())
    with contextlib.suppress(OSError):
        names.append(os.readlink("/proc/self/ns/net"))
    with contextlib.suppress(OSError):
        names += sorted(filter(None, (of_device(device) for _, device in socket.if_nameindex())))
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]
