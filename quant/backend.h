/** How quant.c talks to its backends. Private to the folder and its white-box tests. */
#pragma once

#include "quant/backends.h"
#include "quant/quant.h"

TW_C_BEGIN

/** One backend: a table of operations. quant.c has checked their arguments: the codec and the type are valid,
 *  and the pointers of segments that have elements are not NULL. Encoding counts non-finite blocks. */
typedef struct tw_quant_backend {
    tw_backend_t is;
    /** Allocate what one context needs, in quant->impl. NULL if contexts need nothing. */
    tw_status_t (*create)(tw_quant_t *quant);
    void (*destroy)(tw_quant_t *quant);
    /** Returns how many non-finite blocks the backend has counted itself. The caller adds
     *  quant->nonfinite_blocks. NULL if the backend counts none itself. */
    uint64_t (*nonfinite_blocks)(const tw_quant_t *quant);

    /** Encode src - base if delta is 1, else src. */
    tw_status_t (*encode)(tw_quant_t *, const tw_quant_args_t *, const tw_quant_segment_t *,
                          size_t n_segments, int delta);
    /** Decode. If apply is 1, the decoded values are added to the values at dst, else stored there. */
    tw_status_t (*decode)(tw_quant_t *, const tw_quant_args_t *, const tw_quant_segment_t *,
                          size_t n_segments, int apply);
    /** The first context has the inputs' codec, the second one the output's. Both have the same kind of
     *  memory, but the second may have another backend. */
    tw_status_t (*reduce_encode)(tw_quant_t *, tw_quant_t *, const tw_quant_args_t *,
                                 const tw_quant_reduce_segment_t *, size_t n_segments);
    tw_status_t (*reduce_decode)(tw_quant_t *, const tw_quant_args_t *, const tw_quant_reduce_segment_t *,
                                 size_t n_segments);
    tw_status_t (*adamw_encode_delta)(tw_quant_t *, const tw_quant_args_t *, const tw_quant_adamw_t *,
                                      const tw_quant_adamw_segment_t *, size_t n_segments);
    /** Bytes of workspace for a reduction of these segments. NULL if no reduction needs one. */
    size_t (*reduce_workspace_bytes)(const tw_quant_reduce_segment_t *, size_t);
    /** functions for one segment (host/host.h); NULL: not a host backend */
    const struct tw_quant_host *host;
} tw_quant_backend_t;

struct tw_quant {
    tw_quant_codec_t codec;
    const tw_quant_backend_t *backend;
    uint64_t nonfinite_blocks; /**< atomic */
    void *impl;                /**< what the backend's create allocated, or NULL */
};

/** AdamW in host memory, for all host backends. It works in runs: it updates some elements, lets the backend
 *  encode their change, and goes on to the next elements. */
tw_status_t tw_quant_host_adamw_encode_delta(tw_quant_t *quant, const tw_quant_args_t *args,
                                             const tw_quant_adamw_t *adamw,
                                             const tw_quant_adamw_segment_t *segments, size_t n_segments);

extern const tw_quant_backend_t tw_quant_backend_ref;
#ifdef __x86_64__
extern const tw_quant_backend_t tw_quant_backend_avx512bf16, tw_quant_backend_avx512, tw_quant_backend_avx2;
#elif defined(__aarch64__)
extern const tw_quant_backend_t tw_quant_backend_neon;
#endif
#ifdef TW_HAVE_CUDA
extern const tw_quant_backend_t tw_quant_backend_cuda;
#endif

TW_C_END
