/** The brief header of a short message over TCP. On a slow link the 64 bytes of the whole header are 1.5 % of
 *  a message of 4 KB, and NCCL's own sockets send 4. So an EAGER message below TW_P2P_BRIEF_BELOW travels
 *  with 4 bytes, or with 12 if its tag differs from that of the brief message before it on this connection:
 *
 *      bit 31         1: a brief header (the whole one begins with an id, which is never negative)
 *      bit 30         1: eight bytes with the tag follow
 *      bits 16 to 29  the low bits of its place in the sequence
 *      bits 0 to 15   bytes of data
 *
 *  The connection says whose message it is. Longer messages keep the whole header, so that their data stay
 *  aligned to cache lines (tw_p2p_header_t). Sealed ones keep it, too: the length of a header is not known
 *  before it is opened. Pure functions on bytes. Private to the folder. */
#pragma once

#include "transport/p2p/protocol.h"

TW_C_BEGIN

#define TW_P2P_BRIEF_BELOW TW_P2P_LONG_FROM
/** The bytes that are sent: the word, and the tag if the word says so. */
typedef struct tw_p2p_brief {
    uint32_t word, tag[2];
} tw_p2p_brief_t;

static_assert(sizeof(tw_p2p_brief_t) == 12, "a brief header has no holes");

/** The length of a header that begins with `word`. */
size_t tw_p2p_head_bytes(uint32_t word);
/** Whether a brief header can say all that a whole one says. */
int tw_p2p_brief_fits(const tw_p2p_header_t *header);
/** Write a brief header; last_tag: that of the brief header before it. Returns its bytes. */
size_t tw_p2p_brief_write(const tw_p2p_header_t *header, uint64_t last_tag, tw_p2p_brief_t *out);
/** Read a brief header, all of which is in `in`. source: who sends on this connection. sequence: the number
 *  that is due, for the bits that are not sent. */
tw_p2p_header_t tw_p2p_brief_read(const uint8_t *in, uint32_t source, uint32_t sequence, uint64_t last_tag);

TW_C_END
