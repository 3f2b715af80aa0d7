/** Backends of host memory. Each one (ref.c, avx2.c, avx512.c, neon.c) handles one segment; host.c goes
 *  through the segments of a call.
 *
 *  Read ref.c first: it is the codec in simple code, one element at a time. The fast codec begins in group.h.
 *  Private to the folder. */
#pragma once

#include "quant/backend.h"

/** Functions for one segment, which may be empty. Encoding returns the number of non-finite blocks. */
typedef struct tw_quant_host {
    uint64_t (*encode)(const tw_quant_codec_t *, const tw_quant_args_t *, const tw_quant_segment_t *,
                       int delta);
    void (*decode)(const tw_quant_codec_t *, tw_type_t, const tw_quant_segment_t *, int apply);
    uint64_t (*reduce_encode)(const tw_quant_codec_t *in, const tw_quant_codec_t *out,
                              const tw_quant_args_t *, const tw_quant_reduce_segment_t *);
    void (*reduce_decode)(const tw_quant_codec_t *, const tw_quant_args_t *,
                          const tw_quant_reduce_segment_t *);
} tw_quant_host_t;

TW_C_BEGIN

tw_status_t tw_quant_host_encode(tw_quant_t *quant, const tw_quant_args_t *args,
                                 const tw_quant_segment_t *segments, size_t n_segments, int delta);
tw_status_t tw_quant_host_decode(tw_quant_t *quant, const tw_quant_args_t *args,
                                 const tw_quant_segment_t *segments, size_t n_segments, int apply);
tw_status_t tw_quant_host_reduce_encode(tw_quant_t *in_quant, tw_quant_t *out_quant,
                                        const tw_quant_args_t *args,
                                        const tw_quant_reduce_segment_t *segments, size_t n_segments);
tw_status_t tw_quant_host_reduce_decode(tw_quant_t *quant, const tw_quant_args_t *args,
                                        const tw_quant_reduce_segment_t *segments, size_t n_segments);

/** Initializers that the tables of all backends of host memory share. */
#define TW_QUANT_HOST_OPERATIONS                                                                \
    .encode = tw_quant_host_encode, .decode = tw_quant_host_decode,                             \
    .reduce_encode = tw_quant_host_reduce_encode, .reduce_decode = tw_quant_host_reduce_decode, \
    .adamw_encode_delta = tw_quant_host_adamw_encode_delta

TW_C_END
