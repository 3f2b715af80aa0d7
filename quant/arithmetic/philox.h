/** Philox4x32-10, the counter-based generator of stochastic rounding: any rank can compute the random numbers
 *  of any other rank. Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3"
 *  (SC11). */
#pragma once

#include "quant/arithmetic/float.h"

#define TW_PHILOX_M0 0xD2511F53u
#define TW_PHILOX_M1 0xCD9E8D57u
#define TW_PHILOX_W0 0x9E3779B9u
#define TW_PHILOX_W1 0xBB67AE85u
#define TW_PHILOX_ROUNDS 10

typedef struct tw_philox_words {
    uint32_t word[4];
} tw_philox_words_t;

TW_HD static inline tw_philox_words_t tw_philox(tw_philox_words_t counter, uint32_t key0, uint32_t key1)
{
    for (int round = 0; round < TW_PHILOX_ROUNDS; round++) {
        uint64_t p0 = (uint64_t)TW_PHILOX_M0 * counter.word[0];
        uint64_t p1 = (uint64_t)TW_PHILOX_M1 * counter.word[2];
        tw_philox_words_t next;
        next.word[0] = (uint32_t)(p1 >> 32) ^ counter.word[1] ^ key0;
        next.word[1] = (uint32_t)p1;
        next.word[2] = (uint32_t)(p0 >> 32) ^ counter.word[3] ^ key1;
        next.word[3] = (uint32_t)p0;
        counter = next;
        key0 += TW_PHILOX_W0;
        key1 += TW_PHILOX_W1;
    }
    return counter;
}

/** Random words of the elements 4 * quad .. 4 * quad + 3 of a tensor. */
TW_HD static inline tw_philox_words_t tw_philox_quad(uint64_t seed, uint32_t step, uint32_t tensor,
                                                     uint64_t quad)
{
    tw_philox_words_t counter = {{(uint32_t)quad, (uint32_t)(quad >> 32), tensor, step}};
    return tw_philox(counter, (uint32_t)seed, (uint32_t)(seed >> 32));
}

TW_HD static inline uint32_t tw_philox_word(uint64_t seed, uint32_t step, uint32_t tensor, uint64_t elem)
{
    return tw_philox_quad(seed, step, tensor, elem >> 2).word[elem & 3];
}
