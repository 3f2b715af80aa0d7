/** Private to trainer/data: a vocabulary in memory. */
#ifndef TW_TRAINER_DATA_BPE_STATE_H
#define TW_TRAINER_DATA_BPE_STATE_H

#include "trainer/data/bpe.h"
#include "trainer/data/merges.h"

TW_C_BEGIN

#define TW_BPE_END_OF_TEXT "<|endoftext|>"

struct tw_bpe {
    uint16_t bytes[256]; /* token of each byte */
    int32_t end_of_text; /* its token, or -1 */
    size_t vocab_size;
    tw_merges_t merges;
    void *regex; /* pcre2_code */
};

/** Fill `bpe` from the two files. Errors of tw_bpe_create. */
tw_status_t tw_bpe_load(tw_bpe_t *bpe, const char *vocab_path, const char *merges_path);

TW_C_END

#endif
