/** trainer/model: the network that is trained, as units and tensors, and its mathematics on the CPU.
 *
 *  The engine knows a model only through this header. There are GPT-2 (gpt2.h) and the Llama family
 *  (llama.h): Llama 2 and 3, Mistral, Qwen2, Qwen3. Others are added by a table of functions (ops.h). A model
 *  has units: unit 0, the root (embeddings and the last norm), and units 1 to n_layer, one per block. The
 *  engine gathers weights and reduces gradients one unit at a time. Weights are bf16 or fp32. Computation and
 *  gradients are fp32, but factors of matrix products may be bf16.
 *
 *  Calls for a micro-batch of B sequences of T tokens, forward and backward (C: n_embd):
 *
 *      embed_forward(root)            tokens -> x                            (B,T,C)
 *      block_forward(1 .. n_layer)    x -> y, and the activations that backward needs
 *      head(root)                     x, targets -> loss, dx, root's gradients
 *      block_backward(n_layer .. 1)   dy -> dx, the block's gradients
 *      embed_backward                 dx -> root's gradients
 *
 *  The same inputs give the same bits on one kind of processor, whatever the number of threads: sums have a
 *  fixed order. One thread at a time may call a model; the model computes with the threads of its pool.
 *  A process may have several models.
 *
 *  A model may compute on a device (trainer/device). Activations then lie in the device's memory
 *  (tw_model_alloc), weights and gradients in the host's. Calls return before their work is done;
 *  tw_model_finish waits for it and returns errors.
 *
 *  Source: Radford et al., "Language models are unsupervised multitask learners" (2019); Touvron et al.
 *  (arXiv 2302.13971, 2307.09288). Names and layouts of tensors are those of Hugging Face's transformers: a
 *  linear layer's weight is [in, out] in GPT-2, [out, in] in the Llama family. */
#pragma once

#include "core/core.h"
#include "trainer/model/family.h"
#include "trainer/pool.h"

TW_C_BEGIN

#define TW_MODEL_ROOT 0

/** How rotary embeddings are scaled for sequences longer than pretraining's: rope_type of config.json. */
typedef enum tw_model_rope_type {
    TW_MODEL_ROPE_DEFAULT, /**< no scaling */
    TW_MODEL_ROPE_LINEAR,  /**< all frequencies are divided by `factor` */
    TW_MODEL_ROPE_LLAMA3,  /**< low frequencies are divided by `factor`, medium ones by less */
    TW_MODEL_ROPE_YARN,    /**< like LLAMA3, with limits in turns per n_positions (arXiv 2309.00071) */
    TW_MODEL_ROPE_COUNT
} tw_model_rope_type_t;

/** Rotary embeddings (arXiv 2104.09864). "TYPES:" in a comment: only these types use the field. */
typedef struct tw_model_rope {
    double theta; /**< pair i of D / 2 rotates by theta^(-2i / D) radians per position (D = head_dim) */
    tw_model_rope_type_t type;
    double factor;                            /**< all types but default: at least 1 */
    size_t n_positions;                       /**< llama3, yarn: longest sequence of pretraining */
    double low_freq_factor, high_freq_factor; /**< llama3: usually 1 and 4 */
    double beta_fast, beta_slow;              /**< yarn: usually 32 and 1 turns */
    double attention_factor;                  /**< yarn: scales cos and sin; 0 means 0.1 ln(factor) + 1 */
} tw_model_rope_t;

/** Fields of the Llama family alone (D = head_dim); all 0 in GPT-2. */
typedef struct tw_model_llama {
    size_t n_kv_head; /**< divides n_head; n_head / n_kv_head consecutive query heads share a k/v head */
    size_t head_dim;  /**< even; n_head * head_dim need not be n_embd */
    size_t n_inner;   /**< outputs of the MLP's gate and up projections */
    tw_model_rope_t rope;
    int has_head;             /**< 0: the output layer shares the embedding's weights (tied) */
    size_t window;            /**< sliding window: tokens that a token attends to, itself included; 0: all */
    size_t window_from_layer; /**< first layer that uses the window */
    int attention_bias;       /**< llama, qwen3: 1: q, k, v, o have biases; qwen2 has them in q, k, v */
} tw_model_llama_t;

/** A model's shape and types (C = n_embd, V = vocab_size). */
typedef struct tw_model_config {
    size_t vocab_size;  /**< 1 to 2^20 */
    size_t n_positions; /**< longest sequence; in GPT-2 the rows of wpe, the position embedding */
    size_t n_layer;
    size_t n_head; /**< in GPT-2 it divides n_embd */
    size_t n_embd;
    double layer_norm_epsilon; /**< epsilon of all norms */
    tw_model_family_t family;
    tw_model_llama_t llama;
    /** Type of the factors of matrix products. With bf16, activations and gradients are rounded to bf16 for
     *  each product. Sums are always fp32. */
    tw_type_t products;
    int fp32_weights; /**< 1: weights and products are fp32; 0: weights are bf16 */
} tw_model_config_t;

/** Get a published shape: "gpt2" (124M), "gpt2-medium", "gpt2-large", "gpt2-xl", "llama2-7b", "llama3.1-8b",
 *  "llama3.2-1b", -3b, "mistral-7b", "qwen2.5-0.5b", -1.5b, -7b, "qwen3-0.6b", -1.7b, -4b, -8b.
 *  TW_ERR_NOT_FOUND, logged with all names. */
tw_status_t tw_model_config_preset(const char *name, tw_model_config_t *config);
/** Return the shape of a GPT-2 of about n_params parameters. n_embd is a multiple of 64, at least 128; heads
 *  have 32 or 64 channels; n_layer is chosen so that the count comes nearest to n_params. */
tw_model_config_t tw_model_config_for_params(size_t n_params, size_t vocab_size, size_t n_positions);

typedef struct tw_model tw_model_t;

/** One parameter tensor. */
typedef struct tw_model_tensor {
    const char *name; /**< "transformer.h.0.attn.c_attn.weight"; owned by the model */
    int unit;
    int n_dims;      /**< 1 or 2 */
    size_t shape[2]; /**< row-major; shape[1] is 1 if n_dims is 1 */
    size_t n_elems;
    int decay; /**< 1: weight decay applies to it (1 for tensors of two dimensions) */
    /** Standard deviation of the initial values, normally distributed. If it is 0, all are init_value. */
    double init_std;
    float init_value;
} tw_model_tensor_t;

/** A unit has the model's tensors first_tensor .. first_tensor + n_tensors - 1. */
typedef struct tw_model_unit {
    size_t first_tensor, n_tensors;
    size_t n_elems; /**< elements of all these tensors */
} tw_model_unit_t;

/** Return 1 if this processor multiplies bf16 faster than fp32. */
int tw_model_has_bf16_products(void);
/** Return what computes matrix products: "oneDNN 2.6.3, AVX-512 with bf16". Static storage. */
const char *tw_model_products_name(void);
/** Measure one thread's floating-point operations a second in a large product, an upper bound for models.
 *  `type` is fp32 or bf16. It takes tens of milliseconds. TW_ERR_NO_MEMORY, TW_ERR_INTERNAL, logged. */
tw_status_t tw_model_products_speed(tw_type_t type, double *flops_per_sec);

/** Make a model; tw_model_reserve then allocates memory for computing. The first model in a process checks
 *  oneDNN's products against plain C. TW_ERR_INVALID: a field of the config is wrong, logged with its name;
 *  TW_ERR_INTERNAL: oneDNN computes wrong on this processor, logged with what to do; TW_ERR_NO_MEMORY. */
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
/** Return the multiplications of a unit's matrix products for one token in a forward pass: one for each
 *  weight, and in attention two for each channel and each token attended to (T / 2 tokens on average). An
 *  embedding needs none. The root's are those of the output layer. */
double tw_model_unit_products(const tw_model_t *model, size_t unit, size_t seq_len);
/** Return the floating-point operations of a forward and a backward pass of a B x T micro-batch, without
 *  recomputation: 6 for each multiplication that tw_model_unit_products counts. */
double tw_model_step_flops(const tw_model_t *model, size_t batch, size_t seq_len);

/** Write the initial values of elements first_elem .. first_elem + n_elems - 1 of a tensor to out [n_elems].
 *  They depend on seed, tensor and element alone, so every rank can make its own shard. */
void tw_model_init(const tw_model_t *model, size_t tensor, size_t first_elem, size_t n_elems, uint64_t seed,
                   float *out);

/* ---- computing ----------------------------------------------------------------------------------------- */

/** Memory of a micro-batch of B sequences of T tokens. */
typedef struct tw_model_sizes {
    size_t x_elems;       /**< floats of an activation between units: B * T * C; half of it in bf16 */
    size_t saved_bytes;   /**< bytes that block_forward saves for block_backward, besides x itself */
    size_t scratch_bytes; /**< bytes that tw_model_reserve allocates where the model computes */
    size_t host_bytes;    /**< host memory that tw_model_reserve also allocates for a model on a device */
} tw_model_sizes_t;

/** Make the model compute with a pool's threads. Call this before tw_model_reserve, as sizes depend on the
 *  number of threads. The pool is borrowed for the model's life. With NULL, the default, only the calling
 *  thread computes. TW_ERR_INVALID, TW_ERR_NO_MEMORY, TW_ERR_INTERNAL; logged. */
tw_status_t tw_model_set_pool(tw_model_t *model, tw_pool_t *pool);
/** Return the model's pool, borrowed, or NULL. */
tw_pool_t *tw_model_pool(const tw_model_t *model);

tw_model_sizes_t tw_model_sizes_get(const tw_model_t *model, size_t batch, size_t seq_len);
/** Return the sizes that the model would have on this processor, even if it computes on a device. */
tw_model_sizes_t tw_model_host_sizes_get(const tw_model_t *model, size_t batch, size_t seq_len);
/** Allocate scratch memory for micro-batches of exactly B x T, and free what was reserved before. The calls
 *  below need it. TW_ERR_INVALID: a size is 0, or seq_len > n_positions (logged); TW_ERR_NO_MEMORY. */
tw_status_t tw_model_reserve(tw_model_t *model, size_t batch, size_t seq_len);

/** Tell where each token's document begins. starts int32 (B,T) holds indices into the token's sequence, at
 *  most the token's own index, and never decreasing. A token does not attend to tokens before its document.
 *  Positions still count from the sequence's start. `starts` is borrowed until the next call of this function
 *  or of tw_model_reserve (a device reads it in embed_forward). With NULL, and after tw_model_reserve, each
 *  sequence is one document. */
void tw_model_set_documents(tw_model_t *model, const int32_t *starts);

/** Return 1 if the model computes on a device. */
int tw_model_is_on_device(const tw_model_t *model);
/** Allocate zeroed memory for x, y, dx or saved where the model computes, aligned to 64 bytes. NULL: no
 *  memory (logged). */
void *tw_model_alloc(tw_model_t *model, size_t bytes);
void tw_model_free(tw_model_t *model, void *memory);
/** Copy between memory of tw_model_alloc and the host's, in either direction, after all earlier calls have
 *  finished. The copy is complete on return. TW_ERR_CUDA, logged. */
tw_status_t tw_model_copy(tw_model_t *model, void *to, const void *from, size_t bytes);
/** Let a device write gradients as bf16 (rounds 1), or as fp32 again (0). bf16 is for steps of one
 *  micro-batch that send gradients as bf16: `grads` then point to bf16[n_elems], which are overwritten, not
 *  added to. Call before tw_model_reserve. Returns 1 if gradients will be bf16, never on this processor. */
int tw_model_round_gradients(tw_model_t *model, int rounds);
/** Wait until all calls so far are done and their gradients are in host memory. Returns the status of the
 *  first call that failed: TW_ERR_CUDA or another error of a device, logged; TW_OK on this processor. */
tw_status_t tw_model_finish(tw_model_t *model);
/** Wait only until the last call that computed a unit's gradients is done. */
tw_status_t tw_model_finish_unit(tw_model_t *model, size_t unit);
/** Pin a whole buffer of tw_buffer_alloc (page-lock it), so that a device copies from and to it faster.
 *  Returns 0 if the buffer was not pinned: on this processor, for a small buffer, or if the system does not
 *  allow it. Unpin only what was pinned. tw_model_unpin first waits for copies. */
int tw_model_pin(tw_model_t *model, void *start, size_t bytes);
void tw_model_unpin(tw_model_t *model, void *start);

/* Arguments of the calls below:
 *   weights  one pointer per tensor of the unit, each [n_elems] of tw_model_weight_type (whole tensors);
 *   grads    one pointer per tensor of the unit, each fp32[n_elems], to which gradients are added. They are
 *            complete after tw_model_finish; the root's also need embed_backward. If a matrix's pointer is
 *            NULL, its gradient is not computed; the bits of the other gradients do not change;
 *   x, y, dx, dy  fp32 (B,T,C);
 *   saved    saved_bytes bytes, aligned to 64 bytes.
 * The caller owns all of this memory and lends it for the call. A model on a device needs x, y, dx, dy and
 * saved from tw_model_alloc. Pointers need element alignment. With valid arguments only wrong tokens and a
 * device cause errors. After a device's error its calls do nothing, or return that error. */

/** Compute x = wte[token] + wpe[position] (wpe in GPT-2 only). tokens int32 (B,T). TW_ERR_INVALID: a token is
 *  outside the vocabulary; logged. */
tw_status_t tw_model_embed_forward(tw_model_t *model, const void *const *weights, const int32_t *tokens,
                                   float *x);
/** Add dx to the gradients of the embeddings. embed_forward must have accepted the tokens before. */
void tw_model_embed_backward(tw_model_t *model, const int32_t *tokens, const float *dx, float *const *grads);

/** Compute y, which must not overlap x. If `saved` is NULL, nothing is saved for backward. */
void tw_model_block_forward(tw_model_t *model, size_t unit, const void *const *weights, const float *x,
                            float *y, void *saved);
/** Turn d from dy, the loss's gradient with respect to y, into dx, and add to grads. x: the block's input.
 *  saved: what block_forward has written; if it was not kept, call block_forward again first. */
void tw_model_block_backward(tw_model_t *model, size_t unit, const void *const *weights, const float *x,
                             const void *saved, float *d, float *const *grads);

#define TW_MODEL_NO_TARGET (-1)
/** Compute the last norm, logits and cross-entropy. *loss is the mean over the B * T targets, unscaled; dx
 *  and grads are the gradients of scale * loss; scale is 1 / number of micro-batches of a step. dx and grads
 *  are NULL for evaluation; dx may be x. targets int32 (B,T); a target of TW_MODEL_NO_TARGET has no loss.
 *  TW_ERR_INVALID: a target is outside the vocabulary; logged. */
tw_status_t tw_model_head(tw_model_t *model, const void *const *weights, const float *x,
                          const int32_t *targets, float scale, double *loss, float *dx, float *const *grads);
/** Compute the mean loss of each sequence, losses [B], for evaluation. The last bits may depend on B. Errors
 *  are those of tw_model_head. */
tw_status_t tw_model_losses(tw_model_t *model, const void *const *weights, const float *x,
                            const int32_t *targets, double *losses);

/** Compute the logits of the token that follows token `at` (< T) in each sequence. logits fp32 (B,V). */
void tw_model_logits(tw_model_t *model, const void *const *weights, const float *x, size_t at, float *logits);

/* ---- matrices ------------------------------------------------------------------------------------------ */

/** Memory that tw_model_orthogonalize needs: floats of `scratch`, and bytes of `near` on the device. */
typedef struct tw_model_orthogonal {
    size_t scratch_elems, near_bytes;
} tw_model_orthogonal_t;
tw_model_orthogonal_t tw_model_orthogonal_of(const tw_model_t *model, size_t rows, size_t cols);
/** Make x fp32 (rows,cols) nearly orthogonal: its singular vectors stay about the same, its singular values
 *  become 0.7 to 1.2. Five Newton-Schulz steps of degree 5 do that, in fp32; on a device in bf16 with fp32
 *  sums. A matrix of zeros stays zero. All ranks with the same kind of processor or device get the same bits.
 *  `near` is from tw_model_alloc, or NULL on this processor. x is complete on return. TW_ERR_CUDA (device).
 *  Source: Keller Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024). */
tw_status_t tw_model_orthogonalize(tw_model_t *model, size_t rows, size_t cols, float *x, float *scratch,
                                   void *near);

TW_C_END
