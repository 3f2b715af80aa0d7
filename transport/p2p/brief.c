#include "transport/p2p/brief.h"

#include <string.h>

#define MARK (1u << 31)
#define HAS_TAG (1u << 30)
#define SEQUENCE_SHIFT 16
#define SEQUENCE_MASK 0x3fffu
#define BYTES_MASK 0xffffu

static_assert(TW_P2P_BRIEF_BELOW <= BYTES_MASK + 1, "a brief header holds the bytes");

size_t tw_p2p_head_bytes(uint32_t word)
{
    if (!(word & MARK)) {
        return sizeof(tw_p2p_header_t);
    }
    return word & HAS_TAG ? sizeof(tw_p2p_brief_t) : offsetof(tw_p2p_brief_t, tag);
}

int tw_p2p_brief_fits(const tw_p2p_header_t *header)
{
    return header->kind == TW_P2P_EAGER && header->value < TW_P2P_BRIEF_BELOW && !header->id &&
           !header->stream;
}

size_t tw_p2p_brief_write(const tw_p2p_header_t *header, uint64_t last_tag, tw_p2p_brief_t *out)
{
    out->word = MARK | (header->tag == last_tag ? 0 : HAS_TAG) |
                (header->sequence & SEQUENCE_MASK) << SEQUENCE_SHIFT | (uint32_t)header->value;
    memcpy(out->tag, &header->tag, sizeof(out->tag));
    return tw_p2p_head_bytes(out->word);
}

tw_p2p_header_t tw_p2p_brief_read(const uint8_t *in, uint32_t source, uint32_t sequence, uint64_t last_tag)
{
    uint32_t word;
    memcpy(&word, in, sizeof(word));
    tw_p2p_header_t header = {.source = source,
                              .kind = TW_P2P_EAGER,
                              .sequence =
                                  (sequence & ~SEQUENCE_MASK) | (word >> SEQUENCE_SHIFT & SEQUENCE_MASK),
                              .tag = last_tag,
                              .value = word & BYTES_MASK};
    if (word & HAS_TAG) {
        memcpy(&header.tag, in + offsetof(tw_p2p_brief_t, tag), sizeof(header.tag));
    }
    return header;
}
