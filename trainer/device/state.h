/** Private to trainer/device: the structs of a model on a device, and functions that its files share.
 *
 *  create.c   makes a model; allocates its memory       memory.c     divides scratch and saved memory
 *  planned.c  a model on an imaginary GPU               layers.c     layers that all families use
 *  units.c    copies weights in, gradients out          gpt2.c, llama.c  blocks
 *  root.c     embeddings, the last norm, the loss       optimizer.c  AdamW, for the engine
 *  wait.c     waits; records the first error            orthogonal.c  makes matrices orthogonal
 *  replicas.c hpz's replicas in device memory
 *
 *  N = B * T rows of C channels; H query heads and K key/value heads of D channels; Q = (H + 2K) D columns of
 *  q, k and v; F columns of the MLP's hidden layer; V words. */
#pragma once

#include "trainer/device/device.h"
#include "trainer/model/gpt2.h"
#include "trainer/model/llama.h"

TW_C_BEGIN

/** Tensors of a unit begin at multiples of this many elements. */
#define TW_DEVICE_ALIGN_ELEMS ((size_t)128)

/** Most bytes of a chunk of logits. Every chunk reads and writes the whole gradient of the output layer's
 *  weight, so few chunks are best. */
#define TW_DEVICE_LOGITS_BYTES ((size_t)256 << 20)

/** Weights or activations on the device: an incomplete type, as they are bf16 or fp32 depending on the model.
 *  tw_device_at indexes them. */
typedef struct tw_values tw_values_t;

/** Offsets of a unit's tensors in its slot. */
typedef struct tw_device_layout {
    size_t *offsets; /* [n_tensors], in elements */
    size_t n_elems;  /* elements of all tensors, including gaps between them */
} tw_device_layout_t;

/** A slot for a unit: the root's, or one of two that blocks use in turn. */
typedef struct tw_device_slot {
    tw_values_t *weights;
    float *grads;
    uint16_t *rounded;               /* grads as bf16, or NULL if the caller gets fp32 gradients */
    void *staged;                    /* pinned host memory to which gradients are copied */
    tw_device_event_t ready, used;   /* weights have been copied in; kernels have finished reading them */
    tw_device_event_t computed, out; /* gradients have been computed; have been copied out */
    size_t unit;                     /* unit whose gradients are computed here, or being copied out */
    /* [most tensors of a unit] the caller's gradients, to be added to (bf16: overwritten); NULL: skip */
    float **wanted;
    int is_on_way; /* 1: gradients are being copied out, and not yet added to the caller's */
} tw_device_slot_t;
enum { TW_DEVICE_SLOTS = 3 };

/** Activations that a block's forward pass saves for backward, besides x. Backward recomputes norms,
 *  rotations, GELU and SwiGLU. */
typedef struct tw_device_saved {
    tw_values_t *qkv;                         /* (N,Q): with biases, before norms and rotation */
    tw_values_t *attended;                    /* (N,HD) */
    tw_values_t *middle;                      /* (N,C): x after attention */
    tw_values_t *hidden;                      /* (N,F): before GELU; in Llama, the gate */
    tw_values_t *up;                          /* (N,F): Llama */
    float *lse;                               /* (B,H,T): log of each softmax row's sum of exponentials */
    float *mean_1, *rstd_1, *mean_2, *rstd_2; /* (N); means only in GPT-2 */
} tw_device_saved_t;

typedef struct tw_device_scratch {
    void *memory;                   /* one buffer; all other pointers point into it */
    void *saved;                    /* used as block_forward's `saved` if that is NULL */
    tw_values_t *norm, *d_norm;     /* (N,C) */
    tw_values_t *d_attended;        /* (N,HD) */
    tw_values_t *qkv, *d_qkv;       /* (N,Q): q and k normed and rotated (Llama); gradients */
    tw_values_t *hidden, *d_hidden; /* (N,F): input of the MLP's last layer; its gradient, then that of up */
    tw_values_t *d_gate;            /* (N,F): Llama */
    float *mean, *rstd;             /* (N): of the last norm */
    tw_values_t *logits;            /* (logit_rows,V), rows logit_stride apart */
    size_t logit_rows, logit_stride;
    float *max, *sum, *target; /* (N): see loss.h */
    double *losses;            /* (B) */
    int32_t *tokens;           /* (N): tokens or targets */
    int32_t *starts;           /* (N): where tokens' documents begin */
    float *cosines, *sines;    /* (T,D/2): Llama */
    float *workspace;          /* scratch that all kernels share */
} tw_device_scratch_t;

/** The sizes of a block, of any kind of model. */
typedef struct tw_device_sizes {
    tw_type_t type; /* of weights and activations */
    size_t batch, seq_len, n, c, v;
    size_t heads, kv_heads, width, q, kv, qkv; /* H, K, D, HD, KD, Q */
    size_t hidden;                             /* F */
    int is_gpt2;
} tw_device_sizes_t;

typedef struct tw_device_model {
    tw_model_t model; /* first, so that a tw_model_t * can be cast; it shares the tables of `host` */
    tw_model_t *host; /* the model of the same config on this processor */
    tw_device_t *device;
    tw_type_t type; /* of weights and activations: bf16 or fp32 */
    tw_stream_t compute, in, out;
    tw_device_event_t copied; /* event by which the host waits for a stream (wait.c) */
    tw_device_layout_t root, block;
    tw_device_slot_t slots[TW_DEVICE_SLOTS];
    tw_device_scratch_t scratch;
    double *losses;      /* pinned (B) */
    size_t logits_elems; /* most elements of a chunk of logits */
    int rounds_gradients;
    tw_status_t status; /* error of the first call that failed */
} tw_device_model_t;

/* ---- memory.c */
tw_device_sizes_t tw_device_sizes_of(const tw_model_config_t *config, size_t batch, size_t seq_len);
size_t tw_device_saved_bytes(const tw_device_sizes_t *sizes);
tw_device_saved_t tw_device_saved_at(const tw_device_sizes_t *sizes, void *saved);
/** Return the size in bytes of the scratch buffer, without slots. */
size_t tw_device_scratch_bytes(const tw_device_model_t *m, const tw_device_sizes_t *sizes);
tw_status_t tw_device_scratch_init(tw_device_model_t *m, const tw_device_sizes_t *sizes);
/** Returns arguments of attention. The caller sets the pointers to q, k and v. */
tw_cuda_attention_t tw_device_attention_args(const tw_device_sizes_t *sizes);
/** Returns arguments for the heads of q, or of k (is_k). The caller sets gamma, cosines, sines and x. */
tw_cuda_heads_t tw_device_heads_args(const tw_device_sizes_t *sizes, const tw_model_config_t *config,
                                     int is_k);

/* ---- units.c */
tw_status_t tw_device_layouts_init(tw_device_model_t *m);
void tw_device_layouts_cleanup(tw_device_model_t *m);
/** Return how many bytes of device memory, or of pinned host memory (host), all slots take together. */
size_t tw_device_slots_bytes(const tw_device_model_t *m);
size_t tw_device_slots_host_bytes(const tw_device_model_t *m);
tw_status_t tw_device_slots_init(tw_device_model_t *m);
void tw_device_slots_cleanup(tw_device_model_t *m);
/** Begin to copy a unit's weights to its slot. Work enqueued on `compute` after this call waits for them. */
tw_status_t tw_device_bring(tw_device_model_t *m, size_t unit, const void *const *weights);
/** Wait until a unit's weights have been copied. Call this after enqueuing all work that reads the slot. */
tw_status_t tw_device_brought(tw_device_model_t *m, size_t unit);
const tw_values_t *tw_device_weight(const tw_device_model_t *m, size_t unit, int tensor);
/** Set a unit's gradients on the device to zero. `grads` is the caller's, as in model.h. */
tw_status_t tw_device_grads_begin(tw_device_model_t *m, size_t unit, float *const *grads);
/** Return a gradient's address on the device, valid between begin and end; NULL: do not compute it. */
float *tw_device_grad(const tw_device_model_t *m, size_t unit, int tensor);
/** Begin to copy a unit's gradients out, behind the enqueued work that computes them. */
tw_status_t tw_device_grads_end(tw_device_model_t *m, size_t unit, float *const *grads);
/** Wait for all gradients that are being copied out, and add (or write) them to the caller's. */
tw_status_t tw_device_grads_collect(tw_device_model_t *m);
/** tw_device_grads_collect for the gradients of one unit. */
tw_status_t tw_device_grads_collect_unit(tw_device_model_t *m, size_t unit);

/* ---- layers.c */
/** A linear layer: x (N,in), y (N,out). Row strides: `in` for x, y_stride for y. */
typedef struct tw_device_layer {
    const tw_values_t *weight, *bias; /* bias may be NULL */
    float *d_weight, *d_bias;         /* for the backward pass; d_weight NULL: not computed */
    size_t n, in, out, y_stride;
    int is_out_in; /* 1: the weight is (out,in), 0: (in,out) */
} tw_device_layer_t;
/** Enqueues a product on m->compute. */
tw_status_t tw_device_multiply(tw_device_model_t *m, const tw_device_product_t *product);
/** Computes y = x w + bias + c. c has y's shape; it may be y, or NULL. */
tw_status_t tw_device_layer_forward(tw_device_model_t *m, const tw_device_layer_t *layer,
                                    const tw_values_t *x, const tw_values_t *c, tw_values_t *y);
/** Add to the gradients of weight and bias. Compute dx (N,in) = dy w', or with accumulate add that to dx. */
tw_status_t tw_device_layer_backward(tw_device_model_t *m, const tw_device_layer_t *layer,
                                     const tw_values_t *x, const tw_values_t *dy, int accumulate,
                                     tw_values_t *dx);
/** A norm of rows (N,C). It is a root-mean-square norm if beta is NULL. */
typedef struct tw_device_norm {
    const tw_values_t *gamma, *beta;
    float *d_gamma, *d_beta; /* for the backward pass */
    float *mean, *rstd;
} tw_device_norm_t;
tw_status_t tw_device_norm_forward(tw_device_model_t *m, const tw_device_norm_t *norm, const tw_values_t *x,
                                   tw_values_t *y);
/** Add the gradient of x to d, or write it to d if accumulate is 0. */
tw_status_t tw_device_norm_backward(tw_device_model_t *m, const tw_device_norm_t *norm, const tw_values_t *x,
                                    const tw_values_t *dy, int accumulate, tw_values_t *d);
/** Attention forward and backward. q and k are read from qk (N,Q), v from v (N,Q). Rows of both have the
 *  heads of q, then of k, then of v. */
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

/** Return 1 if no call has failed. After an error nothing more is enqueued. */
static inline int tw_device_is_well(const tw_device_model_t *m)
{
    return m->status == TW_OK;
}

/* ---- wait.c */
/** Wait until all work enqueued on the stream is done. */
tw_status_t tw_device_wait_for(tw_device_model_t *m, tw_stream_t stream);
/** Wait for all streams, as a call that failed half-way may have enqueued copies on any of them. */
tw_status_t tw_device_wait_for_all(tw_device_model_t *m);
/** Record a call's status. After the first error later calls do nothing. At the first error this call also
 *  waits for copies from the caller's memory, as the caller may free that memory next. */
void tw_device_note(tw_device_model_t *m, tw_status_t status);

TW_C_END
