/** Private to trainer/data: an open source. */
#pragma once

#include "trainer/data/data.h"
#include "trainer/data/encode.h"
#include "trainer/data/tokens.h"

TW_C_BEGIN

/** Sequences after which the turns of groups repeat. */
#define TW_DATA_TURNS 1024

/** Files that are shuffled together: range first .. first + n - 1 of the training split. */
typedef struct tw_data_group {
    size_t first, n;
    double weight;
    uint32_t n_turns; /* how many of the TW_DATA_TURNS turns the group has */
} tw_data_group_t;

/** Which group a sequence is of, and how many of the group's come before it since the turns began. */
typedef struct tw_data_turn {
    uint32_t group, before;
} tw_data_turn_t;

struct tw_data {
    tw_data_tokens_t *files; /* [n_files] files of training, then those for validation alone */
    size_t n_files, n_train_files;
    tw_data_range_t *ranges[2]; /* by tw_data_split_t, [n_ranges] each: at most one of a file */
    size_t n_ranges[2];
    tw_data_group_t *groups; /* [n_groups] */
    size_t n_groups;
    tw_data_turn_t *turns; /* [TW_DATA_TURNS]; NULL: there is one group */
    size_t vocab_size;
    tw_data_vocabulary_t *vocabulary; /* NULL: there is none, or it was not to be kept */
    int is_bytes;                     /* 1: a token is a byte, and the vocabulary was to be kept */
    int64_t document;                 /* token that begins or ends a document; -1: sequences begin anywhere */
};

TW_C_END
