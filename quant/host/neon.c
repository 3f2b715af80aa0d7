/* The NEON twin. */
#include "quant/host/group_neon.h"

#include "quant/host/group_decode.h"
#include "quant/host/group_reduce.h"

static int neon_usable(void)
{
    return 1;
}

static const tw_quant_host_t operations = {
    .encode = encode_segment,
    .decode = decode_segment,
    .reduce_encode = reduce_encode_segment,
    .reduce_decode = reduce_decode_segment,
};

const tw_quant_backend_t tw_quant_backend_neon = {
    .is = {"neon", TW_MEM_HOST, neon_usable},
    .host = &operations,
    TW_QUANT_HOST_OPERATIONS,
};
