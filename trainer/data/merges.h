/** Private to trainer/data: which pairs of tokens are merged into one, and in what order. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

#define TW_MERGE_NONE UINT32_MAX

typedef struct tw_merge {
    uint64_t pair;   /**< left << 32 | right */
    uint32_t rank;   /**< lower ones first; TW_MERGE_NONE: no entry */
    uint32_t merged; /**< token that they become */
} tw_merge_t;

/** A hash table with open addressing, never more than half full. */
typedef struct tw_merges {
    tw_merge_t *entries; /**< [mask + 1] */
    uint32_t mask;
} tw_merges_t;

/** Makes room for n_merges merges. TW_ERR_NO_MEMORY; logged. */
tw_status_t tw_merges_init(tw_merges_t *merges, size_t n_merges);
void tw_merges_cleanup(tw_merges_t *merges);
/** Add a merge; of two for the same pair the later one counts. */
void tw_merges_add(tw_merges_t *merges, uint32_t left, uint32_t right, uint32_t rank, uint32_t merged);
/** Return the merge of two tokens; NULL if they stay two. */
const tw_merge_t *tw_merges_find(const tw_merges_t *merges, uint32_t left, uint32_t right);
/** Merge tokens [n] in place until nothing is left to merge; returns how many remain. */
size_t tw_merges_apply(const tw_merges_t *merges, uint32_t *tokens, size_t n);

TW_C_END
