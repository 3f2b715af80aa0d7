/** trainer/model: the network that is trained, as units and tensors, and its mathematics on the CPU.
 *
 *  The engine knows a model only through this header. There are GPT-2 (gpt2.h) and the Llama family
 *  (llama.h): Llama 2 and 3, Mistral, Qwen2, Qwen3. Others are added by a table of functions (ops.h). A model
 *  has units: unit 0, the root (embeddings and the last norm), and units 1 to n_layer, one per block. A unit
 *  is what is gathered and reduced at a time. Weights are bf16, or fp32; mathematics and gradients fp32;
 *  products may have factors of bf16.
 *
 *  A micro-batch of B sequences of T tokens, forwards and backwards:
 *
 *      embed_forward(root)            tokens -> x                            (B,T,C)
 *      block_forward(1 .. n_layer)    x -> y, and what backward needs of it
 *      head(root)                     x, targets -> loss, dx, root's gradients
 *      block_backward(n_layer .. 1)   dy -> dx, the block's gradients
 *      embed_backward                 dx -> root's gradients
 *
 *  The same inputs give the same bits on one kind of processor, whatever the number of threads: sums have a
 *  fixed order. A model is used by one thread at a time, which computes with those of its pool; several
 *  models live side by side.
 *
 *  A model may compute on a device (trainer/device): what it keeps between calls lies in the device's memory
 *  (tw_model_alloc), weights and gradients in the host's. Its calls return before they are done, and errors
 *  show in tw_model_finish.
 *
 *  Source: Radford et al., "Language models are unsupervised multitask learners" (2019); Touvron et al.
 *  (arXiv 2302.13971, 2307.09288). Names and layouts are those that Hugging Face's transformers saves: a
 *  weight of a product is [in, out] in GPT-2, [out, in] in the Llama family. */
#pragma once

#include "core/core.h"
#include "trainer/model/family.h"
#include "trainer/pool.h"

TW_C_BEGIN

#define TW_MODEL_ROOT 0

/** How rotary angles are stretched for texts longer than those of the first training. The names are those of
 *  rope_type in config.json. */
typedef enum tw_model_rope_type {
    TW_MODEL_ROPE_DEFAULT, /**< angles are not stretched */
    TW_MODEL_ROPE_LINEAR,  /**< all angles are stretched by factor */
    TW_MODEL_ROPE_LLAMA3,  /**< slow angles are stretched by factor, those between two wavelengths by less */
    TW_MODEL_ROPE_YARN,    /**< likewise, with limits in numbers of turns (arXiv 2309.00071) */
    TW_MODEL_ROPE_COUNT
} tw_model_rope_type_t;

/** Rotary embeddings (arXiv 2104.09864). A field is used only by the types that it names. */
typedef struct tw_model_rope {
    double theta; /**< pair i of D / 2 turns by theta^(-2i / D) from a position to the next */
    tw_model_rope_type_t type;
    double factor;                            /**< all but default: at least 1 */
    size_t n_positions;                       /**< llama3, yarn: the longest text of the first training */
    double low_freq_factor, high_freq_factor; /**< llama3: usually 1 and 4 */
    double beta_fast, beta_slow;              /**< yarn: usually 32 and 1 turns */
    double attention_factor;                  /**< yarn: factor of cosines and sines; 0: 0.1 ln(factor) + 1 */
} tw_model_rope_t;

/** Fields of the Llama family alone (D = head_dim); all 0 in GPT-2. */
typedef struct tw_model_llama {
    size_t n_kv_head; /**< divides n_head: heads of q that share one of k and v lie side by side */
    size_t head_dim;  /**< even; n_head * head_dim need not be n_embd */
    size_t n_inner;   /**< width of gate and up */
    tw_model_rope_t rope;
    int has_head;             /**< 1: the output layer has weights of its own; 0: it is the embedding */
    size_t window;            /**< how many tokens a token sees, itself included; 0: all before it */
    size_t window_from_layer; /**< the window holds in layers from this one on */
    int attention_bias;       /**< 1: q, k, v and o have biases (llama, qwen3); qwen2: q, k, v always */
} tw_model_llama_t;

/** A model (C = n_embd, V = vocab_size). */
typedef struct tw_model_config {
    size_t vocab_size;  /**< 1 to 2^20 */
    size_t n_positions; /**< longest sequence; in GPT-2 the rows of wpe */
    size_t n_layer;
    size_t n_head; /**< in GPT-2 it divides n_embd */
    size_t n_embd;
    double layer_norm_epsilon; /**< epsilon of all norms */
    tw_model_family_t family;
    tw_model_llama_t llama;
    /** Type of products' factors: fp32, or bf16, to which activations and gradients are rounded; sums:
     *  fp32. */
    tw_type_t products;
    int fp32_weights; /**< 1: weights are fp32, and so are products; 0: they are bf16 */
} tw_model_config_t;

/** Get a published shape: "gpt2" (124M), "gpt2-medium", "gpt2-large", "gpt2-xl", "llama2-7b", "llama3.1-8b",
 *  "llama3.2-1b", -3b, "mistral-7b", "qwen2.5-0.5b", -1.5b, -7b, "qwen3-0.6b", -1.7b, -4b, -8b.
 *  TW_ERR_NOT_FOUND, logged with all names. */
tw_status_t tw_model_config_preset(const char *name, tw_model_config_t *config);
/** Return the shape of a GPT-2 of about n_params parameters for a vocabulary and a length: the width is a
 *  multiple of 64 from 128 on, heads have 32 or 64 channels, the depth brings the count nearest. */
tw_model_config_t tw_model_config_for_params(size_t n_params, size_t vocab_size, size_t n_positions);

typedef struct tw_model tw_model_t;

/** One parameter tensor. */
typedef struct tw_model_tensor {
    const char *name; /**< "transformer.h.0.attn.c_attn.weight"; owned by the model */
    int unit;
    int n_dims;      /**< 1 or 2 */
    size_t shape[2]; /**< row-major; shape[1] is 1 if n_dims is 1 */
    size_t n_elems;
    int decay; /**< 1: weight decay applies (the tensors of two dimensions) */
    /** Initial values are normal with this deviation; if it is 0, all are init_value. */
    double init_std;
    float init_value;
} tw_model_tensor_t;

/** The model's tensors that a unit has: first_tensor .. first_tensor + n_tensors - 1. */
typedef struct tw_model_unit {
    size_t first_tensor, n_tensors;
    size_t n_elems; /**< elements of all of them */
} tw_model_unit_t;

/** Return 1 if this processor multiplies bf16 faster than fp32. */
int tw_model_has_bf16_products(void);
/** Return what computes products: "oneDNN 2.6.3, AVX-512 with bf16". Static storage. */
const char *tw_model_products_name(void);
/** Measure the operations a second of one thread in a large product, which no model exceeds. `type` is fp32
 *  or bf16. It takes tens of milliseconds. TW_ERR_NO_MEMORY, TW_ERR_INTERNAL, logged. */
tw_status_t tw_model_products_speed(tw_type_t type, double *flops_per_sec);

/** Make a model, without memory for computing. The first one in a process checks oneDNN's products against
 *  plain C. TW_ERR_INVALID: the config describes no model, logged with the field; TW_ERR_INTERNAL: oneDNN
 *  computes wrong on this processor, logged with what to do; TW_ERR_NO_MEMORY. */
tw_status_t tw_model_create(const tw_model_config_t *config, tw_model_t **out);
void tw_model_destroy(tw_model_t *model);

const tw_model_config_t *tw_model_config_get(const tw_model_t *model);
/** Return the type of weights: bf16 or fp32. */
tw_type_t tw_model_weight_type(const tw_model_t *model);
size_t tw_model_n_params(const tw_model_t *model);
size_t tw_model_n_units(const tw_model_t *model);
/** Return all tensors, those of unit 0 first; borrowed. */
const tw_model_tensor_t *tw_model_tensors(const tw_model_t *model, size_t *n_tensors);
/** Return a unit; unit < n_units; borrowed. */
const tw_model_unit_t *tw_model_unit_get(const tw_model_t *model, size_t unit);
/** Return the multiplications of a unit's products for a token in a forward pass: one for each weight, and in
 *  attention two for each channel and token that is seen, half of T on average. Embeddings take none; the
 *  root counts the output layer's. */
double tw_model_unit_products(const tw_model_t *model, size_t unit, size_t seq_len);
/** Return the floating-point operations of a forward and a backward pass of a B x T micro-batch, without
 *  recomputation: 6 for each multiplication above. */
double tw_model_step_flops(const tw_model_t *model, size_t batch, size_t seq_len);

/** Write the initial values of elements first_elem .. first_elem + n_elems - 1 of a tensor to out [n_elems].
 *  They depend on seed, tensor and element alone, so every rank can make its own shard. */
void tw_model_init(const tw_model_t *model, size_t tensor, size_t first_elem, size_t n_elems, uint64_t seed,
                   float *out);

/* ---- computing ----------------------------------------------------------------------------------------- */

/** Memory of a micro-batch of B sequences of T tokens. */
typedef struct tw_model_sizes {
    size_t x_elems;       /**< floats of an activation between units: B * T * C; half of it in bf16 */
    size_t saved_bytes;   /**< what block_forward leaves for block_backward, besides x itself */
    size_t scratch_bytes; /**< what tw_model_reserve takes */
    size_t host_bytes;    /**< host memory that tw_model_reserve takes besides, if the model is on a device */
} tw_model_sizes_t;

/** Make the model compute with a pool's threads. Call it before anything is reserved: sizes depend on their
 *  number. The pool is borrowed for the model's life; NULL, as at first: the caller's thread alone.
 *  TW_ERR_INVALID, TW_ERR_NO_MEMORY, TW_ERR_INTERNAL; logged. */
tw_status_t tw_model_set_pool(tw_model_t *model, tw_pool_t *pool);
/** Return the model's pool, borrowed; NULL: there is none. */
tw_pool_t *tw_model_pool(const tw_model_t *model);

tw_model_sizes_t tw_model_sizes_get(const tw_model_t *model, size_t batch, size_t seq_len);
/** Return the sizes of a model of this config and threads on this processor, even if `model` is not. */
tw_model_sizes_t tw_model_host_sizes_get(const tw_model_t *model, size_t batch, size_t seq_len);
/** Allocate the scratch memory for micro-batches of exactly B x T, in place of what was reserved before; the
 *  calls below need it. TW_ERR_INVALID: a size is 0, or seq_len > n_positions (logged); TW_ERR_NO_MEMORY. */
tw_status_t tw_model_reserve(tw_model_t *model, size_t batch, size_t seq_len);

/** Set where each token's document begins: starts int32 (B,T), places in the sequence, not after the token's
 *  own, and never decreasing. Attention does not reach beyond; positions do not change (rotary angles are
 *  relative). `starts` is borrowed for all calls below, until the next call of this or of reserve; on a
 *  device embed_forward reads it. NULL, as after reserve: each sequence is one document. */
void tw_model_set_documents(tw_model_t *model, const int32_t *starts);

/** Return 1 if the model computes on a device. */
int tw_model_is_on_device(const tw_model_t *model);
/** Allocate memory for x, y, dx or saved, aligned to 64 bytes, zeroed. NULL: out of memory (logged). */
void *tw_model_alloc(tw_model_t *model, size_t bytes);
void tw_model_free(tw_model_t *model, void *memory);
/** Copy between such memory and the host's, either way, after the calls so far; it is done on return.
 *  TW_ERR_CUDA, logged. */
tw_status_t tw_model_copy(tw_model_t *model, void *to, const void *from, size_t bytes);
/** Let a device round gradients to bf16 (rounds 1), for steps of one micro-batch whose gradients are sent as
 *  bf16: `grads` then point to bf16[n_elems], which is written, not added to. 0: no more. Call it before
 *  memory is reserved. Returns 1 if gradients will be bf16, which they never are on this processor. */
int tw_model_round_gradients(tw_model_t *model, int rounds);
/** Wait for the calls so far; then the gradients have arrived. Returns the status of the first call that
 *  failed: TW_ERR_CUDA and others of a device, logged; on this processor TW_OK. */
tw_status_t tw_model_finish(tw_model_t *model);
/** Wait only for the last call that gave a unit gradients; later calls may go on. */
tw_status_t tw_model_finish_unit(tw_model_t *model, size_t unit);
/** Pin a whole buffer of tw_buffer_alloc that weights are copied from or to, which makes copies faster, until
 *  unpin, which waits for copies. Returns 0 if it is not pinned, and must not be unpinned: on this processor,
 *  for a small buffer, or because the system does not allow it. */
int tw_model_pin(tw_model_t *model, void *start, size_t bytes);
void tw_model_unpin(tw_model_t *model, void *start);

/* In what follows
 *   weights  one pointer per tensor of the unit, each [n_elems] of tw_model_weight_type (whole tensors);
 *   grads    one pointer per tensor of the unit, each fp32[n_elems], to which gradients are added: they are
 *            there after tw_model_finish, the root's when embed_backward has been called too. NULL for a
 *            matrix: its gradient is not wanted, and not computed; the others' bits stay;
 *   x, y, dx, dy  fp32 (B,T,C), saved: saved_bytes aligned to 64 bytes; all of it the caller's, borrowed for
 *                 the call. On a device they are tw_model_alloc's, and hold what the device keeps there.
 * Pointers need element alignment. Nothing fails once the arguments are right, except for tokens and a
 * device: after an error its calls do nothing, and those that return a status return it. */

/** Compute x = wte[token] + wpe[position], the latter in GPT-2 only. tokens int32 (B,T). TW_ERR_INVALID: a
 *  token is outside the vocabulary; logged. */
tw_status_t tw_model_embed_forward(tw_model_t *model, const void *const *weights, const int32_t *tokens,
                                   float *x);
/** Add dx to the gradients of the embeddings. The tokens must have been through embed_forward. */
void tw_model_embed_backward(tw_model_t *model, const int32_t *tokens, const float *dx, float *const *grads);

/** Compute y, which must not overlap x. `saved` NULL: nothing is kept (evaluation, recomputation). */
void tw_model_block_forward(tw_model_t *model, size_t unit, const void *const *weights, const float *x,
                            float *y, void *saved);
/** Turn d from the loss's gradient by y into that by x, and add to grads. `x` is the block's input, `saved`
 *  what block_forward left (to recompute, call that again first). */
void tw_model_block_backward(tw_model_t *model, size_t unit, const void *const *weights, const float *x,
                             const void *saved, float *d, float *const *grads);

#define TW_MODEL_NO_TARGET (-1)
/** Compute the last norm, logits and cross-entropy. *loss is the mean over the B * T targets, unscaled; dx
 *  and grads are of scale * loss (scale: 1 / number of micro-batches of a step). Both are NULL for
 *  evaluation; dx may be x. targets int32 (B,T); TW_MODEL_NO_TARGET: no loss there. TW_ERR_INVALID: a target
 *  is outside the vocabulary; logged. */
tw_status_t tw_model_head(tw_model_t *model, const void *const *weights, const float *x,
                          const int32_t *targets, float scale, double *loss, float *dx, float *const *grads);
/** Compute the mean loss of each sequence, [B], for evaluation; last bits may depend on B. Errors as
 *  above. */
tw_status_t tw_model_losses(tw_model_t *model, const void *const *weights, const float *x,
                            const int32_t *targets, double *losses);

/** Compute logits of the word after token `at` < T of each sequence. logits fp32 (B,V), the caller's. */
void tw_model_logits(tw_model_t *model, const void *const *weights, const float *x, size_t at, float *logits);

/* ---- matrices ------------------------------------------------------------------------------------------ */

/** What making a matrix orthogonal takes: floats of scratch, and bytes on the model's device. */
typedef struct tw_model_orthogonal {
    size_t scratch_elems, near_bytes;
} tw_model_orthogonal_t;
tw_model_orthogonal_t tw_model_orthogonal_of(const tw_model_t *model, size_t rows, size_t cols);
/** Turn x fp32 (rows,cols) into a matrix of about the same singular vectors, whose singular values are all
 *  near 1 (0.7 to 1.2): by five steps of Newton and Schulz, of degree 5, in fp32; on a device in bf16 with
 *  sums of fp32. A matrix of zeros stays so. The bits are the same on all ranks of one kind of processor or
 *  device. `near` is from tw_model_alloc, NULL on this processor. It is done on return. TW_ERR_CUDA: of a
 *  device. Source: Keller Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024). */
tw_status_t tw_model_orthogonalize(tw_model_t *model, size_t rows, size_t cols, float *x, float *scratch,
                                   void *near);

TW_C_END
