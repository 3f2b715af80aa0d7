/** The codec over groups of 32 elements, for one instruction set: quant_avx2.c and quant_avx512.c include their
 *  group_<isa>.h, then this, and get GROUP_OPERATIONS for their backend's table. Private to the folder.
 *
 *  A block is read twice, the second time from the first-level cache: once for its largest magnitude, once for its codes.
 *  What has to be computed before the magnitude is known (rotation, differences, sums) is kept in between as fp32 in
 *  a scratch of one block. Elements beyond the last whole group of a segment, and blocks whose scale is so large that
 *  a result may overflow, take the scalar path. */
#ifndef TW_QUANT_HOST_GROUP_H
#define TW_QUANT_HOST_GROUP_H

#include "quant/host/group_decode.h"
#include "quant/host/group_encode.h"
#include "quant/host/group_reduce.h"

static tw_status_t group_op_encode(tw_quant_t *quant, const tw_quant_args_t *args,
                                   const tw_quant_segment_t *segments, size_t n_segments)
{
    for (size_t s = 0; s < n_segments; s++) {
        tw_quant_count_nonfinite(quant, encode_segment(&quant->codec, args, &segments[s], 0));
    }
    return TW_OK;
}

static tw_status_t group_op_delta_encode(tw_quant_t *quant, const tw_quant_args_t *args,
                                         const tw_quant_segment_t *segments, size_t n_segments)
{
    for (size_t s = 0; s < n_segments; s++) {
        tw_quant_count_nonfinite(quant, encode_segment(&quant->codec, args, &segments[s], 1));
    }
    return TW_OK;
}

static tw_status_t group_op_decode(tw_quant_t *quant, const tw_quant_args_t *args,
                                   const tw_quant_segment_t *segments, size_t n_segments)
{
    for (size_t s = 0; s < n_segments; s++) {
        decode_segment(&quant->codec, args->type, &segments[s], SINK_STORE);
    }
    return TW_OK;
}

static tw_status_t group_op_decode_add(tw_quant_t *quant, const tw_quant_args_t *args,
                                       const tw_quant_segment_t *segments, size_t n_segments)
{
    (void)args;
    for (size_t s = 0; s < n_segments; s++) {
        decode_segment(&quant->codec, TW_TYPE_FP32, &segments[s], SINK_ADD);
    }
    return TW_OK;
}

static tw_status_t group_op_decode_apply(tw_quant_t *quant, const tw_quant_args_t *args,
                                         const tw_quant_segment_t *segments, size_t n_segments)
{
    for (size_t s = 0; s < n_segments; s++) {
        decode_segment(&quant->codec, args->type, &segments[s], SINK_APPLY);
    }
    return TW_OK;
}

static tw_status_t group_op_reduce_encode(tw_quant_t *in_quant, tw_quant_t *out_quant,
                                          const tw_quant_args_t *args,
                                          const tw_quant_reduce_segment_t *segments, size_t n_segments)
{
    for (size_t s = 0; s < n_segments; s++) {
        tw_quant_count_nonfinite(
            out_quant, reduce_encode_segment(&in_quant->codec, &out_quant->codec, args, &segments[s]));
    }
    return TW_OK;
}

static tw_status_t group_op_reduce_decode(tw_quant_t *quant, const tw_quant_args_t *args,
                                          const tw_quant_reduce_segment_t *segments, size_t n_segments)
{
    for (size_t s = 0; s < n_segments; s++) {
        reduce_decode_segment(&quant->codec, args, &segments[s]);
    }
    return TW_OK;
}

/** The rest of a tw_quant_backend_t, after name, mem and usable. */
#define GROUP_OPERATIONS                                                                     \
    .encode = group_op_encode, .decode = group_op_decode, .decode_add = group_op_decode_add, \
    .delta_encode = group_op_delta_encode, .decode_apply = group_op_decode_apply,            \
    .reduce_encode = group_op_reduce_encode, .reduce_decode = group_op_reduce_decode

#endif
