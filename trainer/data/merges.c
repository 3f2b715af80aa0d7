/* Keeps the table of merges, and applies it to words. */
#include "trainer/data/merges.h"

#include <stdlib.h>

tw_status_t tw_merges_init(tw_merges_t *merges, size_t n_merges)
{
    uint32_t size = 16;
    while (size < 2 * n_merges) {
        size *= 2;
    }
    *merges = (tw_merges_t){.entries = calloc(size, sizeof(*merges->entries)), .mask = size - 1};
    TW_FAIL_IF(!merges->entries, TW_ERR_NO_MEMORY, "data: out of memory for %zu merges", n_merges);
    for (uint32_t i = 0; i < size; i++) {
        merges->entries[i].rank = TW_MERGE_NONE;
    }
    return TW_OK;
}

void tw_merges_cleanup(tw_merges_t *merges)
{
    free(merges->entries);
    *merges = (tw_merges_t){0};
}

/** Return the pair's entry, or the empty one where it would be. */
static tw_merge_t *entry_of(const tw_merges_t *merges, uint64_t pair)
{
    uint32_t at = (uint32_t)((pair * 0x9e3779b97f4a7c15u) >> 32);
    for (;; at++) {
        tw_merge_t *entry = &merges->entries[at & merges->mask];
        if (entry->rank == TW_MERGE_NONE || entry->pair == pair) {
            return entry;
        }
    }
}

static uint64_t pair_of(uint32_t left, uint32_t right)
{
    return (uint64_t)left << 32 | right;
}

void tw_merges_add(tw_merges_t *merges, uint32_t left, uint32_t right, uint32_t rank, uint32_t merged)
{
    uint64_t pair = pair_of(left, right);
    *entry_of(merges, pair) = (tw_merge_t){.pair = pair, .rank = rank, .merged = merged};
}

const tw_merge_t *tw_merges_find(const tw_merges_t *merges, uint32_t left, uint32_t right)
{
    const tw_merge_t *entry = entry_of(merges, pair_of(left, right));
    return entry->rank == TW_MERGE_NONE ? NULL : entry;
}

static const tw_merge_t *first_merge(const tw_merges_t *merges, const uint32_t *tokens, size_t n)
{
    const tw_merge_t *best = NULL;
    for (size_t i = 0; i + 1 < n; i++) {
        const tw_merge_t *merge = tw_merges_find(merges, tokens[i], tokens[i + 1]);
        if (merge && (!best || merge->rank < best->rank)) {
            best = merge;
        }
    }
    return best;
}

/** Apply a merge to all its occurrences, from the left. */
static size_t merge_all(const tw_merge_t *merge, uint32_t *tokens, size_t n)
{
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        int is_pair = i + 1 < n && pair_of(tokens[i], tokens[i + 1]) == merge->pair;
        tokens[kept++] = is_pair ? merge->merged : tokens[i];
        i += (size_t)is_pair;
    }
    return kept;
}

size_t tw_merges_apply(const tw_merges_t *merges, uint32_t *tokens, size_t n)
{
    const tw_merge_t *merge;
    while ((merge = first_merge(merges, tokens, n))) {
        n = merge_all(merge, tokens, n);
    }
    return n;
}
