#include "plugin/nccl/abi/types.h"

int tw_nccl_type_get(int nccl_type, tw_type_t *out)
{
    switch (nccl_type) {
    case TW_NCCL_FLOAT16:
        *out = TW_TYPE_FP16;
        return 1;
    case TW_NCCL_FLOAT32:
        *out = TW_TYPE_FP32;
        return 1;
    case TW_NCCL_BFLOAT16:
        *out = TW_TYPE_BF16;
        return 1;
    default:
        return 0;
    }
}
