/** Host memory as a table of operations, for replicas without params.memory. */
#include <string.h>

#include "hpz/state.h"

static tw_status_t host_reserve(void *ctx, size_t n_elems, size_t n_segments, int deltas)
{
    tw_hpz_t *hpz = ctx;
    (void)n_elems;
    (void)n_segments;
    return deltas ? tw_quant_delta_create(NULL, &hpz->delta) : TW_OK;
}

static tw_status_t host_group(void *ctx, tw_coll_t *parent, const int *ranks, int n_ranks, tw_coll_t **out,
                              tw_stream_t *stream)
{
    (void)ctx;
    *stream = NULL;
    return tw_coll_group_create(parent, ranks, n_ranks, out);
}

static tw_status_t host_copy(void *ctx, void *to, const void *from, size_t n_bytes)
{
    (void)ctx;
    if (n_bytes > 0) { /* with 0 bytes, a pointer may be NULL */
        memcpy(to, from, n_bytes);
    }
    return TW_OK;
}

static tw_status_t host_zero(void *ctx, void *at, size_t n_bytes)
{
    (void)ctx;
    memset(at, 0, n_bytes);
    return TW_OK;
}

static tw_status_t host_narrow(void *ctx, const float *from, uint16_t *to, size_t n)
{
    (void)ctx;
    tw_convert_from_fp32(TW_TYPE_BF16, from, 1, to, n);
    return TW_OK;
}

static tw_status_t host_encode(void *ctx, const tw_quant_delta_segment_t *segments, size_t n_segments,
                               void *dst, size_t dst_bytes, size_t *bytes)
{
    const tw_hpz_t *hpz = ctx;
    return tw_quant_delta_encode(hpz->delta, segments, n_segments, dst, dst_bytes, bytes);
}

static tw_status_t host_decode(void *ctx, const tw_quant_delta_segment_t *segments, size_t n_segments,
                               const void *src, size_t src_bytes)
{
    const tw_hpz_t *hpz = ctx;
    return tw_quant_delta_decode(hpz->delta, segments, n_segments, src, src_bytes);
}

static tw_status_t wait(void *ctx)
{
    (void)ctx;
    return TW_OK;
}

tw_hpz_memory_t tw_hpz_host_memory(tw_hpz_t *hpz)
{
    return (tw_hpz_memory_t){.ctx = hpz,
                             .reserve = host_reserve,
                             .group = host_group,
                             .copy = host_copy,
                             .zero = host_zero,
                             .narrow = host_narrow,
                             .encode = host_encode,
                             .decode = host_decode,
                             .wait = wait};
}
