/** Private to trainer/data: an open source. */
#pragma once

#include "trainer/data/data.h"
#include "trainer/data/encode.h"
#include "trainer/data/tokens.h"

TW_C_BEGIN

/** A turn is one training sequence. The order in which groups take turns repeats after this many turns. */
#define TW_DATA_TURNS 1024

/** Files that are shuffled together: ranges first .. first + n - 1 of the training split. */
typedef struct tw_data_group {
    size_t first, n;
    double weight;
    uint32_t n_turns; /* number of the TW_DATA_TURNS turns that the group has */
} tw_data_group_t;

/** The group from which a turn takes its sequence, and how many earlier turns this group has. */
typedef struct tw_data_turn {
    uint32_t group, before;
} tw_data_turn_t;

struct tw_data {
    tw_data_tokens_t *files; /* [n_files] training's, then those for validation only */
    size_t n_files, n_train_files;
    tw_data_range_t *ranges[2]; /* [n_ranges] each, by tw_data_split_t; at most one per file */
    size_t n_ranges[2];
    tw_data_group_t *groups; /* [n_groups] */
    size_t n_groups;
    tw_data_turn_t *turns; /* [TW_DATA_TURNS], or NULL if there is one group */
    size_t vocab_size;
    tw_data_vocabulary_t *vocabulary; /* NULL: none, or keeps_vocabulary is 0 */
    int is_bytes;                     /* 1: a token is a byte, and keeps_vocabulary is 1 */
    int64_t document;                 /* document_token, if sequences begin there; -1: they begin anywhere */
};

TW_C_END
