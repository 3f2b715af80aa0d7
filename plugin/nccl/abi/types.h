/** The element types of NCCL that this library encodes and adds up. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** ncclDataType_t. */
typedef enum tw_nccl_type { TW_NCCL_FLOAT16 = 6, TW_NCCL_FLOAT32 = 7, TW_NCCL_BFLOAT16 = 9 } tw_nccl_type_t;

/** Convert an ncclDataType_t to our type. Returns 0 if it is none of tw_nccl_type_t. */
int tw_nccl_type_get(int nccl_type, tw_type_t *out);

TW_C_END
