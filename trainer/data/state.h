/** Private to trainer/data: an open source. */
#ifndef TW_TRAINER_DATA_STATE_H
#define TW_TRAINER_DATA_STATE_H

#include "trainer/data/data.h"
#include "trainer/data/tokens.h"

TW_C_BEGIN

struct tw_data {
    tw_data_tokens_t files[2]; /* the second one only if validation has a file of its own */
    tw_data_range_t splits[2]; /* by tw_data_split_t */
    size_t vocab_size;
};

TW_C_END

#endif
