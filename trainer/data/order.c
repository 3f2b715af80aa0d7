/* Shuffles an epoch without memory. A Feistel network permutes all numbers of 2k bits. If the result is not
 * below n, it goes through the network again until it is. Source: Black and Rogaway, "Ciphers with arbitrary
 * finite domains" (CT-RSA 2002), method 2. */
#include "trainer/data/order.h"

enum { ROUNDS = 6 };

/** The finishing steps of SplitMix64, a mixing function. */
static uint64_t order_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static uint64_t permute(uint64_t key, unsigned half_bits, uint64_t x)
{
    uint64_t mask = ((uint64_t)1 << half_bits) - 1;
    uint64_t left = x >> half_bits, right = x & mask;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        uint64_t next = left ^ (order_mix(key ^ order_mix(right * ROUNDS + round)) & mask);
        left = right;
        right = next;
    }
    return left << half_bits | right;
}

uint64_t tw_data_order(uint64_t seed, uint64_t epoch, uint64_t n, uint64_t place)
{
    unsigned half_bits = 1;
    while (half_bits < 32 && ((uint64_t)1 << (2 * half_bits)) < n) {
        half_bits++;
    }
    uint64_t key = order_mix(order_mix(seed) ^ epoch);
    do {
        place = permute(key, half_bits, place);
    } while (place >= n);
    return place;
}
