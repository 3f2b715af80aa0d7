/** How quant.c talks to its backends. Private to the folder and its white-box tests. */
#pragma once

#include "quant/backends.h"
#include "quant/quant.h"

TW_C_BEGIN

/** One backend: a table of operations. Arguments have been checked: the codec and the type are valid, the
 *  pointers of every segment with elements are not NULL. Encoding counts the non-finite blocks that it
 *  meets. */
typedef struct tw_quant_backend {
    tw_backend_t is;
    /** Acquire what one context needs, into quant->impl; NULL: nothing. */
    tw_status_t (*create)(tw_quant_t *quant);
    void (*destroy)(tw_quant_t *quant);
    /** Returns how many non-finite blocks are not counted in quant->nonfinite_blocks; NULL: none ever. */
    uint64_t (*nonfinite_blocks)(const tw_quant_t *quant);

    /** Encode src - base with delta, else src. */
    tw_status_t (*encode)(tw_quant_t *, const tw_quant_args_t *, const tw_quant_segment_t *,
                          size_t n_segments, int delta);
    /** Decode; with apply the decoded values are added to those at dst, else stored. */
    tw_status_t (*decode)(tw_quant_t *, const tw_quant_args_t *, const tw_quant_segment_t *,
                          size_t n_segments, int apply);
    /** The memory of both contexts is this backend's; the second one's own backend may be another. */
    tw_status_t (*reduce_encode)(tw_quant_t *, tw_quant_t *, const tw_quant_args_t *,
                                 const tw_quant_reduce_segment_t *, size_t n_segments);
    tw_status_t (*reduce_decode)(tw_quant_t *, const tw_quant_args_t *, const tw_quant_reduce_segment_t *,
                                 size_t n_segments);
    tw_status_t (*adamw_encode_delta)(tw_quant_t *, const tw_quant_args_t *, const tw_quant_adamw_t *,
                                      const tw_quant_adamw_segment_t *, size_t n_segments);
    /** Bytes of workspace for a reduction of these segments. NULL: none needs any. */
    size_t (*reduce_workspace_bytes)(const tw_quant_reduce_segment_t *, size_t);
    const struct tw_quant_host *host; /**< host/host.h's part of a backend, or NULL */
} tw_quant_backend_t;

struct tw_quant {
    tw_quant_codec_t codec;
    const tw_quant_backend_t *backend;
    uint64_t nonfinite_blocks; /**< atomic */
    void *impl;                /**< the backend's own */
};

/** AdamW in host memory: it updates some elements, lets the backend encode their change, then takes the next
 *  ones. */
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
