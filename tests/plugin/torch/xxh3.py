"""XXH3 of 64 bits with a seed, in plain Python: the checksum of messages of changed weights. Slow; for tests.
Written from the algorithm's specification."""

import struct

MASK = (1 << 64) - 1
P32 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
P64 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
MIX = 0x165667919E3779F9, 0x9FB21C651E98DF25
SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
    "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e")


def _u64(data, at):
    return int.from_bytes(data[at : at + 8], "little")


def _swapped(x, n):
    return int.from_bytes(x.to_bytes(n, "little"), "big")


def _turned(x, n):
    return (x << n | x >> (64 - n)) & MASK


def _fold(a, b):
    product = (a & MASK) * (b & MASK)
    return (product ^ product >> 64) & MASK


def _avalanche(h):
    h = (h ^ h >> 37) * MIX[0] & MASK
    return h ^ h >> 32


def _avalanche64(h):
    h = (h ^ h >> 33) * P64[1] & MASK
    h = (h ^ h >> 29) * P64[2] & MASK
    return h ^ h >> 32


def _short(data, seed):
    """Up to 16 bytes."""
    n = len(data)
    if n > 8:
        low = _u64(data, 0) ^ ((_u64(SECRET, 24) ^ _u64(SECRET, 32)) + seed & MASK)
        high = _u64(data, n - 8) ^ ((_u64(SECRET, 40) ^ _u64(SECRET, 48)) - seed & MASK)
        return _avalanche(n + _swapped(low, 8) + high + _fold(low, high) & MASK)
    if n > 3:
        seed ^= _swapped(seed & 0xFFFFFFFF, 4) << 32
        first, last = struct.unpack_from("<I", data)[0], struct.unpack_from("<I", data, n - 4)[0]
        h = (last | first << 32) ^ ((_u64(SECRET, 8) ^ _u64(SECRET, 16)) - seed & MASK)
        h = (h ^ _turned(h, 49) ^ _turned(h, 24)) * MIX[1] & MASK
        h = (h ^ (h >> 35) + n) * MIX[1] & MASK
        return h ^ h >> 28
    if n:
        secret = (_u64(SECRET, 0) ^ _u64(SECRET, 0) >> 32) & 0xFFFFFFFF
        all_of_it = data[0] << 16 | data[n >> 1] << 24 | data[n - 1] | n << 8
        return _avalanche64(all_of_it ^ (secret + seed & MASK))
    return _avalanche64(seed ^ _u64(SECRET, 56) ^ _u64(SECRET, 64))


def _middle(data, seed):
    """17 to 240 bytes."""
    def mix(at, key):
        return _fold(_u64(data, at) ^ (_u64(SECRET, key) + seed & MASK),
                     _u64(data, at + 8) ^ (_u64(SECRET, key + 8) - seed & MASK))

    n = len(data)
    h = n * P64[0]
    if n <= 128:
        for i in range((n + 31) // 32):
            h += mix(16 * i, 32 * i) + mix(n - 16 * (i + 1), 32 * i + 16)
        return _avalanche(h & MASK)
    h = _avalanche(h + sum(mix(16 * i, 16 * i) for i in range(8)) & MASK)
    h += sum(mix(16 * i, 16 * (i - 8) + 3) for i in range(8, n // 16)) + mix(n - 16, 119)
    return _avalanche(h & MASK)


def _long(data, seed):
    secret = b"".join(struct.pack("<QQ", _u64(SECRET, at) + seed & MASK, _u64(SECRET, at + 8) - seed & MASK)
                      for at in range(0, len(SECRET), 16))
    lanes = [P32[2], P64[0], P64[1], P64[2], P64[3], P32[1], P64[4], P32[0]]

    def add(at, key):
        for i, (value, mask) in enumerate(zip(struct.unpack_from("<8Q", data, at),
                                              struct.unpack_from("<8Q", secret, key))):
            mixed = value ^ mask
            lanes[i ^ 1] += value
            lanes[i] += (mixed & 0xFFFFFFFF) * (mixed >> 32)

    stripes = (len(data) - 1) // 64
    for stripe in range(stripes):
        add(64 * stripe, 8 * (stripe % 16))
        if stripe % 16 == 15:
            for i, key in enumerate(struct.unpack_from("<8Q", secret, 128)):
                lane = lanes[i] & MASK
                lanes[i] = (lane ^ lane >> 47 ^ key) * P32[0] & MASK
    add(len(data) - 64, 121)
    h = len(data) * P64[0]
    for i in range(4):
        h += _fold(lanes[2 * i] ^ _u64(secret, 11 + 16 * i), lanes[2 * i + 1] ^ _u64(secret, 19 + 16 * i))
    return _avalanche(h & MASK)


def xxh3(data, seed=0):
    if len(data) <= 16:
        return _short(data, seed)
    return _middle(data, seed) if len(data) <= 240 else _long(data, seed)
