"""Finds the address that a rank tells the others. A host's name may not resolve, or may not be unique."""

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
# Addresses that are reserved for documentation. The route to them is the default route: towards() finds
# this host's address on that route. Nothing is sent to them.
ELSEWHERE = ("192.0.2.1", "2001:db8::1")


def is_loopback(address: str) -> bool:
    """Returns whether an address is one of the loopback device."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _ipv4(device: str) -> str | None:
    """Returns the device's IPv4 address, or None if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket, contextlib.suppress(OSError):
        request = struct.pack("256s", device.encode()[:15])
        return socket.inet_ntoa(fcntl.ioctl(any_socket.fileno(), SIOCGIFADDR, request)[20:24])
    return None


def _ipv6(device: str) -> str | None:
    """Returns the device's first IPv6 address, or None. Skips link-local ones, useless to other hosts."""
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/net/if_inet6").read_text().splitlines():
            digits, _, _, _, _, name = line.split()
            address = ipaddress.ip_address(bytes.fromhex(digits))
            if name == device and not address.is_link_local:
                return str(address)
    return None


def of_device(device: str) -> str | None:
    """Returns an address of a network device. None if the device has no address, or if `device` is not a
    network interface but one of UCX's names, such as "mlx5_0:1"."""
    return _ipv4(device) or _ipv6(device)


def towards(host: str) -> str | None:
    """Returns this host's address on the route to `host`; None without a route or for an unknown name."""
    with contextlib.suppress(OSError):
        for family, kind, _, _, address in socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM):
            with socket.socket(family, kind) as any_socket, contextlib.suppress(OSError):
                any_socket.connect(address)
                return any_socket.getsockname()[0]
    return None


def _master(store: dist.Store) -> str:
    """Returns the host of a TCP store. For other stores returns MASTER_ADDR, or "" if that is not set."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return getattr(store, "host", "") or os.environ.get("MASTER_ADDR", "")


def _chosen() -> str | None:
    """Returns the first address of a device in TW_NET_DEVICES, else in GLOO_SOCKET_IFNAME, or None."""
    for name in ("TW_NET_DEVICES", "GLOO_SOCKET_IFNAME"):
        for device in os.environ.get(name, "").split(","):
            found = of_device(device.strip()) if device.strip() else None
            if found:
                return found
    return None


def own(store: dist.Store) -> str:
    """Returns this rank's address: that of the device that the user has named, else the one on the route to
    the store's host. A loopback address if the store is on this host or if there is no network."""
    host = _master(store)
    found = _chosen() or (towards(host) if host else None)
    if found:
        return found
    return next(filter(None, map(towards, ELSEWHERE)), LOOPBACK)


def reachable(mine: str, others: list[str]) -> str:
    """Returns the address at which the other ranks reach this one. That is `mine`, unless `mine` is a
    loopback address and another rank's is not: then it is this host's address on the route to that rank."""
    if not is_loopback(mine):
        return mine
    ways = (towards(other) for other in others if not is_loopback(other))
    return next((way for way in ways if way and not is_loopback(way)), mine)


def place() -> str:
    """Returns a text that is equal in two processes if and only if they reach each other over loopback: a
    hash of host name, boot, network namespace and all addresses, as copies of a machine may share a name."""
    names = [socket.gethostname()]
    with contextlib.suppress(OSError):
        names.append(pathlib.Path("/proc/sys/kernel/random/boot_id").read_text())
    with contextlib.suppress(OSError):
        names.append(os.readlink("/proc/self/ns/net"))
    with contextlib.suppress(OSError):
        names += sorted(filter(None, (of_device(device) for _, device in socket.if_nameindex())))
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]
