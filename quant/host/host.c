/* Goes through the segments of a call, one after the other. */
#include "quant/host/host.h"

static void count_nonfinite(tw_quant_t *quant, uint64_t blocks)
{
    if (blocks) {
        __atomic_fetch_add(&quant->nonfinite_blocks, blocks, __ATOMIC_RELAXED);
    }
}

tw_status_t tw_quant_host_encode(tw_quant_t *quant, const tw_quant_args_t *args,
                                 const tw_quant_segment_t *segments, size_t n_segments, int delta)
{
    for (size_t s = 0; s < n_segments; s++) {
        count_nonfinite(quant, quant->backend->host->encode(&quant->codec, args, &segments[s], delta));
    }
    return TW_OK;
}

tw_status_t tw_quant_host_decode(tw_quant_t *quant, const tw_quant_args_t *args,
                                 const tw_quant_segment_t *segments, size_t n_segments, int apply)
{
    for (size_t s = 0; s < n_segments; s++) {
        quant->backend->host->decode(&quant->codec, args->type, &segments[s], apply);
    }
    return TW_OK;
}

tw_status_t tw_quant_host_reduce_encode(tw_quant_t *in_quant, tw_quant_t *out_quant,
                                        const tw_quant_args_t *args,
                                        const tw_quant_reduce_segment_t *segments, size_t n_segments)
{
    const tw_quant_host_t *host = in_quant->backend->host;
    for (size_t s = 0; s < n_segments; s++) {
        count_nonfinite(out_quant,
                        host->reduce_encode(&in_quant->codec, &out_quant->codec, args, &segments[s]));
    }
    return TW_OK;
}

tw_status_t tw_quant_host_reduce_decode(tw_quant_t *quant, const tw_quant_args_t *args,
                                        const tw_quant_reduce_segment_t *segments, size_t n_segments)
{
    for (size_t s = 0; s < n_segments; s++) {
        quant->backend->host->reduce_decode(&quant->codec, args, &segments[s]);
    }
    return TW_OK;
}
