/* The NEON backend. */
#include "quant/host/group_neon.h"

#include "quant/host/group_reduce.h"

static int neon_usable(void)
{
    return 1;
}

const tw_quant_backend_t tw_quant_backend_neon = {
    .is = {"neon", TW_MEM_HOST, neon_usable},
    .host = &group_operations,
    TW_QUANT_HOST_OPERATIONS,
};
