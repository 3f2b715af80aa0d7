/** Private to trainer/device: what a model on a device is made of.
 *
 *  create.c   from a config to a model; its memory      memory.c     where scratch and saved memory lie
 *  planned.c  a GPU that need not be there              layers.c     layers that the families share
 *  units.c    weights in, gradients out                 gpt2.c, llama.c  blocks
 *  root.c     embeddings, the last norm, the loss       optimizer.c  AdamW, for the engine
 *  wait.c     waiting; what a call came to              orthogonal.c  matrices made orthogonal
 *  replicas.c memory for hpz's replicas
 *
 *  N = B * T rows of C channels; H heads of q and K of k and v, of D channels each; Q = (H + 2K) D; F: width
 *  of the hidden layer; V words. */
#pragma once

#include "trainer/device/device.h"
#include "trainer/model/gpt2.h"
#include "trainer/model/llama.h"

TW_C_BEGIN

/** Tensors of a unit begin at multiples of this many elements. */
#define TW_DEVICE_ALIGN_ELEMS ((size_t)128)

/** Bytes of logits that are made at a time. Every chunk of rows reads and writes the gradient of the output
 *  layer's weight, so few chunks are best. */
#define TW_DEVICE_LOGITS_BYTES ((size_t)256 << 20)

/** Weights or activations on the device, of the model's type: bf16 or fp32. tw_device_at counts in them. */
typedef struct tw_values tw_values_t;

/** Where a unit's tensors lie in its slot. */
typedef struct tw_device_layout {
    size_t *offsets; /* [n_tensors] elements */
    size_t n_elems;  /* elements of all, gaps between tensors included */
} tw_device_layout_t;

/** A slot for a unit: the root's, or one of two that blocks use in turn. */
typedef struct tw_device_slot {
    tw_values_t *weights;
    float *grads;
    uint16_t *rounded;             /* grads as bf16, if the caller wants them so; else NULL */
    void *staged;                  /* pinned host memory, where gradients arrive */
    tw_device_event_t ready, used; /* ready: weights have come; used: nobody reads them any more */
    tw_device_event_t computed, out;
    size_t unit; /* unit whose gradients are computed here, or on their way out */
    /* [most tensors of a unit] where gradients are added to, or, rounded, written to; NULL: not wanted */
    float **wanted;
    int is_on_way;
} tw_device_slot_t;
enum { TW_DEVICE_SLOTS = 3 };

/** What a block's backward pass needs of its forward pass besides x; norms, rotations and what comes between
 *  products are computed again. */
typedef struct tw_device_saved {
    tw_values_t *qkv;                         /* (N,Q): with biases, before norms and rotation */
    tw_values_t *attended;                    /* (N,HD) */
    tw_values_t *middle;                      /* (N,C): x after attention */
    tw_values_t *hidden;                      /* (N,F): before GELU; in Llama, the gate */
    tw_values_t *up;                          /* (N,F): Llama */
    float *lse;                               /* (B,H,T): logarithms of the softmax's sums */
    float *mean_1, *rstd_1, *mean_2, *rstd_2; /* (N); means: GPT-2 */
} tw_device_saved_t;

typedef struct tw_device_scratch {
    void *memory;                   /* one buffer; the others point into it */
    void *saved;                    /* what a block saves, if the caller does not want it */
    tw_values_t *norm, *d_norm;     /* (N,C) */
    tw_values_t *d_attended;        /* (N,HD) */
    tw_values_t *qkv, *d_qkv;       /* (N,Q): q and k normed and rotated (Llama); gradients */
    tw_values_t *hidden, *d_hidden; /* (N,F): input of the last product; the gradient by it, then by up */
    tw_values_t *d_gate;            /* (N,F): Llama */
    float *mean, *rstd;             /* (N): of the last norm */
    tw_values_t *logits;            /* (logit_rows,V), rows logit_stride apart */
    size_t logit_rows, logit_stride;
    float *max, *sum, *target; /* (N): see loss.h */
    double *losses;            /* (B) */
    int32_t *tokens;           /* (N): tokens or targets */
    int32_t *starts;           /* (N): where tokens' documents begin */
    float *cosines, *sines;    /* (T,D/2): Llama */
    float *workspace;          /* memory that kernels work in */
} tw_device_scratch_t;

/** The sizes of a block, of either family. */
typedef struct tw_device_sizes {
    tw_type_t type; /* of weights and activations */
    size_t batch, seq_len, n, c, v;
    size_t heads, kv_heads, width, q, kv, qkv; /* H, K, D, HD, KD, Q */
    size_t hidden;                             /* F */
    int is_gpt2;
} tw_device_sizes_t;

typedef struct tw_device_model {
    tw_model_t model; /* it is first, so that a tw_model_t * is one of these; its tables are the host's */
    tw_model_t *host; /* the model of the same config on this processor */
    tw_device_t *device;
    tw_type_t type; /* of weights and activations: bf16 or fp32 */
    tw_stream_t compute, in, out;
    tw_device_event_t copied; /* event of tw_model_copy, tokens and losses */
    tw_device_layout_t root, block;
    tw_device_slot_t slots[TW_DEVICE_SLOTS];
    tw_device_scratch_t scratch;
    double *losses;      /* pinned (B) */
    size_t logits_elems; /* logits that are made at a time */
    int rounds_gradients;
    tw_status_t status; /* error of the first call that failed */
} tw_device_model_t;

/* ---- memory.c */
tw_device_sizes_t tw_device_sizes_of(const tw_model_config_t *config, size_t batch, size_t seq_len);
size_t tw_device_saved_bytes(const tw_device_sizes_t *sizes);
tw_device_saved_t tw_device_saved_at(const tw_device_sizes_t *sizes, void *saved);
/** Return the bytes of the scratch buffer alone. */
size_t tw_device_scratch_bytes(const tw_device_model_t *m, const tw_device_sizes_t *sizes);
tw_status_t tw_device_scratch_init(tw_device_model_t *m, const tw_device_sizes_t *sizes);
/** Returns arguments of attention for the heads in qkv. */
tw_cuda_attention_t tw_device_attention_args(const tw_device_sizes_t *sizes);
/** Returns arguments for the heads of q, or of k, without weights and tables. */
tw_cuda_heads_t tw_device_heads_args(const tw_device_sizes_t *sizes, const tw_model_config_t *config,
                                     int is_k);

/* ---- units.c */
tw_status_t tw_device_layouts_init(tw_device_model_t *m);
void tw_device_layouts_cleanup(tw_device_model_t *m);
/** Return the bytes of all slots together: device memory; pinned host memory. */
size_t tw_device_slots_bytes(const tw_device_model_t *m);
size_t tw_device_slots_host_bytes(const tw_device_model_t *m);
tw_status_t tw_device_slots_init(tw_device_model_t *m);
void tw_device_slots_cleanup(tw_device_model_t *m);
/** Begin to copy a unit's weights in; computing that is enqueued from now on waits for them. */
tw_status_t tw_device_bring(tw_device_model_t *m, size_t unit, const void *const *weights);
/** Wait until a unit's weights have come; call it once all that reads them is enqueued. */
tw_status_t tw_device_brought(tw_device_model_t *m, size_t unit);
const tw_values_t *tw_device_weight(const tw_device_model_t *m, size_t unit, int tensor);
/** Set a unit's gradients to zero; `grads` as in model.h. */
tw_status_t tw_device_grads_begin(tw_device_model_t *m, size_t unit, float *const *grads);
/** Return a gradient, between begin and end; NULL if it is not wanted. */
float *tw_device_grad(const tw_device_model_t *m, size_t unit, int tensor);
/** Copy a unit's gradients out, behind what is enqueued, which computes them. */
tw_status_t tw_device_grads_end(tw_device_model_t *m, size_t unit, float *const *grads);
/** Add all gradients that are on their way to where they are wanted. */
tw_status_t tw_device_grads_collect(tw_device_model_t *m);
/** Add the gradients of one unit to where they are wanted. */
tw_status_t tw_device_grads_collect_unit(tw_device_model_t *m, size_t unit);

/* ---- layers.c */
/** A weight between x (N,in), rows in apart, and y (N,out), rows y_stride apart. */
typedef struct tw_device_layer {
    const tw_values_t *weight, *bias; /* bias NULL: none */
    float *d_weight, *d_bias;         /* for the backward pass; d_weight NULL: not wanted */
    size_t n, in, out, y_stride;
    int is_out_in; /* 1: the weight is (out,in), 0: (in,out) */
} tw_device_layer_t;
/** Enqueues a product on the stream of computing. */
tw_status_t tw_device_multiply(tw_device_model_t *m, const tw_device_product_t *product);
/** Computes y = x w + bias + c; c is like y, and may be y; NULL: none. */
tw_status_t tw_device_layer_forward(tw_device_model_t *m, const tw_device_layer_t *layer,
                                    const tw_values_t *x, const tw_values_t *c, tw_values_t *y);
/** Add to the gradients of weight and bias, and compute dx (N,in) = dy w', or +=. */
tw_status_t tw_device_layer_backward(tw_device_model_t *m, const tw_device_layer_t *layer,
                                     const tw_values_t *x, const tw_values_t *dy, int accumulate,
                                     tw_values_t *dx);
/** gamma and beta of rows (N,C); beta NULL: root-mean-square norm. */
typedef struct tw_device_norm {
    const tw_values_t *gamma, *beta;
    float *d_gamma, *d_beta; /* for the backward pass */
    float *mean, *rstd;
} tw_device_norm_t;
tw_status_t tw_device_norm_forward(tw_device_model_t *m, const tw_device_norm_t *norm, const tw_values_t *x,
                                   tw_values_t *y);
/** Compute d += the gradient by x, or d = it if accumulate is 0. */
tw_status_t tw_device_norm_backward(tw_device_model_t *m, const tw_device_norm_t *norm, const tw_values_t *x,
                                    const tw_values_t *dy, int accumulate, tw_values_t *d);
/** Attention forward and backward. q and k come from qk (N,Q), v from v (N,Q): in a row Q, K and V lie
 *  side by side, by heads. */
tw_status_t tw_device_attention_forward(tw_device_model_t *m, size_t window, const tw_values_t *qk,
                                        const tw_values_t *v, const tw_device_saved_t *saved);
tw_status_t tw_device_attention_backward(tw_device_model_t *m, size_t window, const tw_values_t *qk,
                                         const tw_values_t *v, const tw_device_saved_t *saved,
                                         const tw_values_t *dy, tw_values_t *d_qkv);

/* ---- a block of each family; saved: parts */
tw_status_t tw_device_gpt2_forward(tw_device_model_t *m, size_t unit, const tw_device_saved_t *saved,
                                   const tw_values_t *x, tw_values_t *y);
tw_status_t tw_device_gpt2_backward(tw_device_model_t *m, size_t unit, const tw_device_saved_t *saved,
                                    const tw_values_t *x, tw_values_t *d);
tw_status_t tw_device_llama_forward(tw_device_model_t *m, size_t unit, const tw_device_saved_t *saved,
                                    const tw_values_t *x, tw_values_t *y);
tw_status_t tw_device_llama_backward(tw_device_model_t *m, size_t unit, const tw_device_saved_t *saved,
                                     const tw_values_t *x, tw_values_t *d);

/* ---- root.c: as in ops.h */
tw_status_t tw_device_embed_forward(tw_model_t *model, const void *const *weights, const int32_t *tokens,
                                    float *x);
void tw_device_embed_backward(tw_model_t *model, const int32_t *tokens, const float *dx, float *const *grads);
tw_status_t tw_device_head(tw_model_t *model, const void *const *weights, const float *x,
                           const int32_t *targets, float scale, double *loss, float *dx, float *const *grads);
void tw_device_logits(tw_model_t *model, const void *const *weights, const float *x, size_t at,
                      float *logits);
tw_status_t tw_device_losses(tw_model_t *model, const void *const *weights, const float *x,
                             const int32_t *targets, double *losses);

/** Returns the address of element i. */
static inline tw_values_t *tw_device_at(const tw_device_model_t *m, const tw_values_t *values, size_t i)
{
    return (tw_values_t *)((char *)(uintptr_t)values + i * tw_type_bytes(m->type));
}

/* ---- orthogonal.c: as in model.h */
tw_model_orthogonal_t tw_device_orthogonal_of(size_t rows, size_t cols);
tw_status_t tw_device_orthogonalize(tw_model_t *model, size_t rows, size_t cols, float *x, float *scratch,
                                    void *near);

/** Whether no call has failed: after an error nothing more is enqueued. */
static inline int tw_device_is_well(const tw_device_model_t *m)
{
    return m->status == TW_OK;
}

/* ---- wait.c */
/** Wait until all that was enqueued on the stream is done. */
tw_status_t tw_device_wait_for(tw_device_model_t *m, tw_stream_t stream);
/** Wait for all streams: copies of a call that failed half-way may be under way on any. */
tw_status_t tw_device_wait_for_all(tw_device_model_t *m);
/** Note a call's status. The first error ends all calls; then copies from the caller's weights are waited
 *  for, as the caller may free those after the call. */
void tw_device_note(tw_device_model_t *m, tw_status_t status);

TW_C_END
