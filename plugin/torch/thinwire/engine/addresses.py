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
# Addresses of networks that nobody has, so the default route leads there. Nothing is sent to them.
ELSEWHERE = ("192.0.2.1", "2001:db8::1")


def is_loopback(address: str) -> bool:
    """Whether an address is the loopback device's."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _ipv4(device: str) -> str | None:
    """The device's address, if it has one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket, contextlib.suppress(OSError):
        request = struct.pack("256s", device.encode()[:15])
        return socket.inet_ntoa(fcntl.ioctl(any_socket.fileno(), SIOCGIFADDR, request)[20:24])
    return None


def _ipv6(device: str) -> str | None:
    """The device's first address that is not link-local: such a one means nothing on another host."""
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/net/if_inet6").read_text().splitlines():
            digits, _, _, _, _, name = line.split()
            address = ipaddress.ip_address(bytes.fromhex(digits))
            if name == device and not address.is_link_local:
                return str(address)
    return None


def of_device(device: str) -> str | None:
    """An address of a network device. None if it has none, or if only UCX knows the device, as "mlx5_0:1"."""
    return _ipv4(device) or _ipv6(device)


def towards(host: str) -> str | None:
    """This host's address on the way to another host; None if no way leads there or the name is unknown."""
    with contextlib.suppress(OSError):
        for family, kind, _, _, address in socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM):
            with socket.socket(family, kind) as any_socket, contextlib.suppress(OSError):
                any_socket.connect(address)
                return any_socket.getsockname()[0]
    return None


def _master(store: dist.Store) -> str:
    """The host of a store over TCP, else MASTER_ADDR."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return getattr(store, "host", "") or os.environ.get("MASTER_ADDR", "")


def _chosen() -> str | None:
    """The address of the first device that TW_NET_DEVICES or GLOO_SOCKET_IFNAME names and that has one."""
    for name in ("TW_NET_DEVICES", "GLOO_SOCKET_IFNAME"):
        for device in os.environ.get(name, "").split(","):
            found = of_device(device.strip()) if device.strip() else None
            if found:
                return found
    return None


def own(store: dist.Store) -> str:
    """This rank's address: the device's that the user has named, else the one on the way to the store's host,
    which is a loopback address if the store is here or if there is no network."""
    host = _master(store)
    found = _chosen() or (towards(host) if host else None)
    if found:
        return found
    return next(filter(None, map(towards, ELSEWHERE)), LOOPBACK)


def reachable(mine: str, others: list[str]) -> str:
    """The address at which the others reach this rank: `mine`, unless that is a loopback address and theirs
    are not."""
    if not is_loopback(mine):
        return mine
    ways = (towards(other) for other in others if not is_loopback(other))
    return next((way for way in ways if way and not is_loopback(way)), mine)


def place() -> str:
    """A text that is the same in all processes that reach each other over the loopback device, and differs
    elsewhere. It is made of the boot, the network namespace and all addresses, since copies of a machine may
    share its name."""
    names = [socket.gethostname()]
    with contextlib.suppress(OSError):
        names.append(pathlib.Path("/proc/sys/kernel/random/boot_id").read_text())
    with contextlib.suppress(OSError):
        names.append(os.readlink("/proc/self/ns/net"))
    with contextlib.suppress(OSError):
        names += sorted(filter(None, (of_device(device) for _, device in socket.if_nameindex())))
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]
