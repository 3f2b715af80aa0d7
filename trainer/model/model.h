/** trainer/model: the network that is trained, as units and tensors, and its mathematics on the CPU.
 *
 *  The engine knows a model only by what stands here; GPT-2 is the one there is (gpt2.h), others join by a table of functions
 *  (ops.h). A model has units: unit 0, the root (embeddings and the last norm), and units 1 to n_layer, one per block. A unit is what is gathered
 *  and reduced at a time. Weights are bf16, mathematics and gradients fp32.
 *
 *  A micro-batch of B sequences of T tokens, forwards and backwards:
 *
 *      embed_forward(root)            tokens -> x                            (B,T,C)
 *      block_forward(1 .. n_layer)    x -> y, and what backward needs of it
 *      head(root)                     x, targets -> loss, dx, root's gradients
 *      block_backward(n_layer .. 1)   dy -> dx, the block's gradients
 *      embed_backward                 dx -> root's gradients
 *
 *  Same inputs, same bits: one thread, sums in a fixed order. A model is used by one thread at a time; several models live
 *  side by side.
 *
 *  Source: Radford et al., "Language models are unsupervised multitask learners" (2019); names and layouts as
 *  Hugging Face's GPT2LMHeadModel saves them (a weight of a product is [in, out]). */
#ifndef TW_TRAINER_MODEL_MODEL_H
#define TW_TRAINER_MODEL_MODEL_H

#include "core/core.h"

TW_C_BEGIN

#define TW_MODEL_ROOT 0

/** A GPT-2 (C = n_embd, V = vocab_size). */
typedef struct tw_model_config {
    size_t vocab_size;  /**< 1 to 65536 */
    size_t n_positions; /**< longest sequence, the rows of wpe */
    size_t n_layer;
    size_t n_head; /**< divides n_embd */
    size_t n_embd;
    double layer_norm_epsilon;
} tw_model_config_t;

/** "gpt2" (124M), "gpt2-medium", "gpt2-large", "gpt2-xl" as published. TW_ERR_NOT_FOUND, logged with the names there are. */
tw_status_t tw_model_config_preset(const char *name, tw_model_config_t *config);
/** The shape of about n_params parameters for a vocabulary and a length: width a multiple of 64 and at least 128, heads of
 *  32 or 64, depth so that the count comes nearest. */
tw_model_config_t tw_model_config_for_params(size_t n_params, size_t vocab_size, size_t n_positions);

typedef struct tw_model tw_model_t;

/** One parameter tensor. */
typedef struct tw_model_tensor {
    const char *name; /**< "transformer.h.0.attn.c_attn.weight"; the model's */
    int unit;
    int n_dims;      /**< 1 or 2 */
    size_t shape[2]; /**< row-major; shape[1] is 1 if n_dims is 1 */
    size_t n_elems;
    int decay; /**< 1: weight decay applies (the tensors of two dimensions) */
    double
        init_std; /**< initial values: normal with this deviation, or, if it is 0, all of them init_value */
    float init_value;
} tw_model_tensor_t;

/** Which of the model's tensors a unit has: first_tensor .. first_tensor + n_tensors - 1. */
typedef struct tw_model_unit {
    size_t first_tensor, n_tensors;
    size_t n_elems; /**< of all of them together */
} tw_model_unit_t;

/** Describe a model; takes no memory worth counting. The first model of a process checks the products of OpenBLAS against plain C.
 *  TW_ERR_INVALID: a config that is no model, logged with the field; TW_ERR_INTERNAL: OpenBLAS computes wrong on this processor, logged
 *  with what to do; TW_ERR_NO_MEMORY. */
tw_status_t tw_model_create(const tw_model_config_t *config, tw_model_t **out);
void tw_model_destroy(tw_model_t *model);

const tw_model_config_t *tw_model_config_get(const tw_model_t *model);
size_t tw_model_n_params(const tw_model_t *model);
size_t tw_model_n_units(const tw_model_t *model);
/** All tensors, those of unit 0 first; borrowed. */
const tw_model_tensor_t *tw_model_tensors(const tw_model_t *model, size_t *n_tensors);
/** unit < n_units; borrowed. */
const tw_model_unit_t *tw_model_unit_get(const tw_model_t *model, size_t unit);
/** Floating-point operations of a forward and a backward pass of a B x T micro-batch, without recomputation. */
double tw_model_step_flops(const tw_model_t *model, size_t batch, size_t seq_len);

/** Initial values of elements first_elem .. first_elem + n_elems - 1 of a tensor: a function of seed, tensor and element
 *  alone, so every rank can make its own shard. out [n_elems]. */
void tw_model_init(const tw_model_t *model, size_t tensor, size_t first_elem, size_t n_elems, uint64_t seed,
                   float *out);

/* ---- computing ------------------------------------------------------------------------------------------------- */

/** Memory of a micro-batch of B sequences of T tokens. */
typedef struct tw_model_sizes {
    size_t x_elems;       /**< floats of an activation between units: B * T * C */
    size_t saved_bytes;   /**< what block_forward leaves for block_backward, besides x itself */
    size_t scratch_bytes; /**< what tw_model_reserve takes */
} tw_model_sizes_t;

tw_model_sizes_t tw_model_sizes_get(const tw_model_t *model, size_t batch, size_t seq_len);
/** Take the scratch memory for micro-batches of exactly B x T, in place of what was reserved before; the calls below need it.
 *  TW_ERR_INVALID: 0, or seq_len > n_positions (logged); TW_ERR_NO_MEMORY. */
tw_status_t tw_model_reserve(tw_model_t *model, size_t batch, size_t seq_len);

/* In what follows
 *   weights  one pointer per tensor of the unit, each bf16[n_elems] (whole tensors);
 *   grads    one pointer per tensor of the unit, each fp32[n_elems], to which gradients are added;
 *   x, y, dx, dy  fp32 (B,T,C), saved: saved_bytes aligned to 64 bytes; all of it the caller's, borrowed for the call.
 * Pointers need element alignment. Nothing fails once the arguments are right; tokens are the exception. */

/** x = wte[token] + wpe[position]. tokens int32 (B,T). TW_ERR_INVALID: a token outside the vocabulary; logged. */
tw_status_t tw_model_embed_forward(tw_model_t *model, const uint16_t *const *weights, const int32_t *tokens,
                                   float *x);
/** Adds dx to the gradients of wte and wpe. The tokens have been through embed_forward. */
void tw_model_embed_backward(tw_model_t *model, const int32_t *tokens, const float *dx, float *const *grads);

/** y must not overlap x. saved may be NULL: nothing is kept (evaluation, or recomputation later). */
void tw_model_block_forward(tw_model_t *model, size_t unit, const uint16_t *const *weights, const float *x,
                            float *y, void *saved);
/** x: what the block got; saved: what block_forward left (recomputing: call it again first). On entry d is the loss's
 *  gradient by y, on return that by x. */
void tw_model_block_backward(tw_model_t *model, size_t unit, const uint16_t *const *weights, const float *x,
                             const void *saved, float *d, float *const *grads);

/** Last norm, logits (tied to wte), cross-entropy. loss: the mean over the B * T targets, unscaled. dx and grads are of
 *  scale * loss (scale: 1 / number of micro-batches of a step); both NULL for evaluation; dx may be x.
 *  targets int32 (B,T). TW_ERR_INVALID: a target outside the vocabulary; logged. */
tw_status_t tw_model_head(tw_model_t *model, const uint16_t *const *weights, const float *x,
                          const int32_t *targets, float scale, double *loss, float *dx, float *const *grads);
/** The mean loss of each sequence, [B], for evaluation: its last bits may depend on B. TW_ERR_INVALID as above. */
tw_status_t tw_model_losses(tw_model_t *model, const uint16_t *const *weights, const float *x,
                            const int32_t *targets, double *losses);

TW_C_END

#endif
