/** The brief header of a short message over TCP. On a slow link, the 64 bytes of a whole header are 1.5 % of
 *  a message of 4 KB; NCCL's own sockets send 4 bytes. So an EAGER message below TW_P2P_BRIEF_BELOW has a
 *  header of 4 bytes, or of 12 if its tag differs from the previous brief header's on this connection:
 *
 *      bit 31         1: a brief header (the whole one begins with an id, which is never negative)
 *      bit 30         1: eight bytes with the tag follow
 *      bits 16 to 29  the low bits of `sequence` (tw_p2p_header_t)
 *      bits 0 to 15   bytes of data
 *
 *  The sender follows from the connection. Longer messages keep the whole header, so that their data stay
 *  aligned to cache lines (tw_p2p_header_t). Sealed messages keep it, too, because the length of a sealed
 *  header must be known before it is decrypted. Pure functions on bytes. Private to the folder. */
#pragma once

#include "transport/p2p/protocol.h"

TW_C_BEGIN

#define TW_P2P_BRIEF_BELOW TW_P2P_LONG_FROM
/** A brief header as it is sent: the word, then the tag if bit 30 of the word is 1. */
typedef struct tw_p2p_brief {
    uint32_t word, tag[2];
} tw_p2p_brief_t;

static_assert(sizeof(tw_p2p_brief_t) == 12, "a brief header has no holes");

/** Return the length in bytes of a header that begins with `word`. */
size_t tw_p2p_head_bytes(uint32_t word);
/** Return 1 if a brief header can hold all that this whole header says. */
int tw_p2p_brief_fits(const tw_p2p_header_t *header);
/** Write a brief header. last_tag: tag of the previous brief header. Returns the bytes written. */
size_t tw_p2p_brief_write(const tw_p2p_header_t *header, uint64_t last_tag, tw_p2p_brief_t *out);
/** Read a brief header, which `in` holds completely. source: the sender on this connection. sequence: the
 *  expected number, from which the bits that are not sent are taken. */
tw_p2p_header_t tw_p2p_brief_read(const uint8_t *in, uint32_t source, uint32_t sequence, uint64_t last_tag);

TW_C_END
