/** trainer/model: the network that is trained, as units and tensors, and its mathematics on the CPU.
 *
 *  The engine knows a model only by what stands here. There are GPT-2 (gpt2.h) and the Llama family
 *  (llama.h): Llama 2 and 3, Mistral, Qwen2, Qwen3. Others join by a table of functions (ops.h). A model has
 *  units: unit 0, the root (embeddings and the last norm), and units 1 to n_layer, one per block. A unit is
 *  what is gathered and reduced at a time. Weights are bf16, or fp32; mathematics and gradients fp32;
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
 *  Same inputs, same bits on one kind of processor, whatever the number of threads: sums are in a fixed
 *  order. A model is used by one thread at a time, which computes with those of its pool; several models live
 *  side by side.
 *
 *  A model may compute on a device (trainer/device): what it keeps between calls lies in memory of its own
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

/** How rotary angles are stretched for texts longer than those of the first training; the names are
 *  rope_type's of config.json. */
typedef enum tw_model_rope_type {
    TW_MODEL_ROPE_DEFAULT, /**< angles are not stretched */
    TW_MODEL_ROPE_LINEAR,  /**< all angles are stretched by factor */
    TW_MODEL_ROPE_LLAMA3,  /**< the slow ones by factor, those between two wavelengths by less */
    TW_MODEL_ROPE_YARN,    /**< likewise, between two numbers of turns (arXiv 2309.00071) */
    TW_MODEL_ROPE_COUNT
} tw_model_rope_type_t;

/** Rotary embeddings (arXiv 2104.09864). What a type does not name is not looked at. */
typedef struct tw_model_rope {
    double theta; /**< pair i of D / 2 turns by theta^(-2i / D) from a position to the next */
    tw_model_rope_type_t type;
    double factor;                            /**< all but default: at least 1 */
    size_t n_positions;                       /**< llama3, yarn: the longest text of the first training */
    double low_freq_factor, high_freq_factor; /**< llama3: 1 and 4 */
    double beta_fast, beta_slow;              /**< yarn: 32 and 1 turns */
    double attention_factor;                  /**< yarn, of cosines and sines; 0: 0.1 ln(factor) + 1 */
} tw_model_rope_t;

/** What the Llama family has besides (D = head_dim). GPT-2: all 0. */
typedef struct tw_model_llama {
    size_t n_kv_head; /**< divides n_head: heads of q that share one of k and v lie side by side */
    size_t head_dim;  /**< even; n_head * head_dim need not be n_embd */
    size_t n_inner;   /**< width of gate and up */
    tw_model_rope_t rope;
    int has_head;             /**< 1: the output layer has weights of its own; 0: it is the embedding */
    size_t window;            /**< a token sees so many, itself among them; 0: all before it */
    size_t window_from_layer; /**< in layers from this one on */
    int attention_bias; /**< 1: q, k, v and o have biases (llama, qwen3); qwen2's q, k and v do always */
} tw_model_llama_t;

/** A model (C = n_embd, V = vocab_size). */
typedef struct tw_model_config {
    size_t vocab_size;  /**< 1 to 2^20 */
    size_t n_positions; /**< longest sequence; in GPT-2 the rows of wpe */
    size_t n_layer;
    size_t n_head; /**< in GPT-2 it divides n_embd */
    size_t n_embd;
    double layer_norm_epsilon; /**< of all norms */
    tw_model_family_t family;
    tw_model_llama_t llama;
    /** Of the products' factors: fp32, or bf16, which activations and gradients are rounded to; sums are fp32
     *  either way. */
    tw_type_t products;
    int fp32_weights; /**< 1: weights are fp32, and so are products; 0: they are bf16 */
} tw_model_config_t;

/** Shapes as published: "gpt2" (124M), "gpt2-medium", "gpt2-large", "gpt2-xl", "llama2-7b", "llama3.1-8b",
 *  "llama3.2-1b", -3b, "mistral-7b", "qwen2.5-0.5b", -1.5b, -7b, "qwen3-0.6b", -1.7b, -4b, -8b.
 *  TW_ERR_NOT_FOUND, logged with the names there are. */
tw_status_t tw_model_config_preset(const char *name, tw_model_config_t *config);
/** The shape of a GPT-2 of about n_params parameters for a vocabulary and a length: width a multiple of 64
 *  and at least 128, heads of 32 or 64, depth so that the count comes nearest. */
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
    /** initial values: normal with this deviation, or, if it is 0, all of them init_value */
    double init_std;
    float init_value;
} tw_model_tensor_t;

/** Which of the model's tensors a unit has: first_tensor .. first_tensor + n_tensors - 1. */
typedef struct tw_model_unit {
    size_t first_tensor, n_tensors;
    size_t n_elems; /**< of all of them together */
} tw_model_unit_t;

/** Does this processor multiply bf16 faster than fp32? */
int tw_model_has_bf16_products(void);
/** Returns what multiplies: "oneDNN 2.6.3, AVX-512 with bf16". Static storage. */
const char *tw_model_products_name(void);
/** Operations a second of one thread in a large product: no model is faster. type: fp32 or bf16. Tens of
 *  milliseconds. TW_ERR_NO_MEMORY, TW_ERR_INTERNAL, logged. */
tw_status_t tw_model_products_speed(tw_type_t type, double *flops_per_sec);

/** Describe a model; takes no memory worth counting. The first model of a process checks the products of
 *  oneDNN against plain C. TW_ERR_INVALID: a config that is no model, logged with the field;
 *  TW_ERR_INTERNAL: oneDNN computes wrong on this processor, logged with what to do; TW_ERR_NO_MEMORY. */
tw_status_t tw_model_create(const tw_model_config_t *config, tw_model_t **out);
void tw_model_destroy(tw_model_t *model);

const tw_model_config_t *tw_model_config_get(const tw_model_t *model);
/** Returns the type of weights: bf16 or fp32. */
tw_type_t tw_model_weight_type(const tw_model_t *model);
size_t tw_model_n_params(const tw_model_t *model);
size_t tw_model_n_units(const tw_model_t *model);
/** Returns all tensors, those of unit 0 first; borrowed. */
const tw_model_tensor_t *tw_model_tensors(const tw_model_t *model, size_t *n_tensors);
/** Returns a unit; unit < n_units; borrowed. */
const tw_model_unit_t *tw_model_unit_get(const tw_model_t *model, size_t unit);
/** Multiplications that a unit's products take for a token in a forward pass: one for each weight, and of
 *  attention two for each channel and token that is seen, half of T on average. Embeddings look up; the root
 *  has the output layer's. */
double tw_model_unit_products(const tw_model_t *model, size_t unit, size_t seq_len);
/** Floating-point operations of a forward and a backward pass of a B x T micro-batch, without recomputation:
 *  6 for each product. */
double tw_model_step_flops(const tw_model_t *model, size_t batch, size_t seq_len);

/** Initial values of elements first_elem .. first_elem + n_elems - 1 of a tensor: a function of seed, tensor
 *  and element alone, so every rank can make its own shard. out [n_elems]. */
void tw_model_init(const tw_model_t *model, size_t tensor, size_t first_elem, size_t n_elems, uint64_t seed,
                   float *out);

/* ---- computing ----------------------------------------------------------------------------------------- */

/** Memory of a micro-batch of B sequences of T tokens. */
typedef struct tw_model_sizes {
    size_t x_elems;       /**< floats of an activation between units: B * T * C; half of it in bf16 */
    size_t saved_bytes;   /**< what block_forward leaves for block_backward, besides x itself */
    size_t scratch_bytes; /**< what tw_model_reserve takes */
    size_t host_bytes;    /**< and of host memory besides, where it computes on a device */
} tw_model_sizes_t;

/** Compute with a pool's threads, before anything is reserved: sizes depend on their number. The pool is the
 *  caller's and lives as long as the model; NULL: the caller's thread alone, as at first. TW_ERR_INVALID,
 *  TW_ERR_NO_MEMORY, TW_ERR_INTERNAL; logged. */
tw_status_t tw_model_set_pool(tw_model_t *model, tw_pool_t *pool);
/** Returns the model's pool, borrowed; NULL: there is none. */
tw_pool_t *tw_model_pool(const tw_model_t *model);

tw_model_sizes_t tw_model_sizes_get(const tw_model_t *model, size_t batch, size_t seq_len);
/** Of a model of the same config and threads that computes on this processor, which this one may do. */
tw_model_sizes_t tw_model_host_sizes_get(const tw_model_t *model, size_t batch, size_t seq_len);
/** Take the scratch memory for micro-batches of exactly B x T, in place of what was reserved before; the
 *  calls below need it. TW_ERR_INVALID: 0, or seq_len > n_positions (logged); TW_ERR_NO_MEMORY. */
tw_status_t tw_model_reserve(tw_model_t *model, size_t batch, size_t seq_len);

/** Where the document begins that each token is in: starts int32 (B,T), places in the sequence, not after the
 *  token's own, not before that of the token before it. Attention does not reach beyond; positions stay
 *  (rotary angles are relative). Borrowed, for all calls below until the next of this or of reserve; on a
 *  device embed_forward reads it. NULL, as after reserve: each sequence is one document. */
void tw_model_set_documents(tw_model_t *model, const int32_t *starts);

/** Does it compute on a device? */
int tw_model_is_on_device(const tw_model_t *model);
/** Memory for x, y, dx and saved, aligned to 64 bytes, zeroed. NULL: out of memory (logged). */
void *tw_model_alloc(tw_model_t *model, size_t bytes);
void tw_model_free(tw_model_t *model, void *memory);
/** Between such memory and the host's, either way; behind the calls so far, and done on return. TW_ERR_CUDA,
 *  logged. */
tw_status_t tw_model_copy(tw_model_t *model, void *to, const void *from, size_t bytes);
/** rounds 1: a step has one micro-batch, and its gradients travel as bf16: on a device they come rounded to
 *  it. `grads` then point to bf16[n_elems], which is written, not added to. 0: no more. Before memory is
 *  reserved; nothing to do on this processor. Returns 1 if gradients will be bf16. */
int tw_model_round_gradients(tw_model_t *model, int rounds);
/** Wait for the calls so far: the gradients are there. The status of the first that failed: TW_ERR_CUDA and
 *  others of a device, logged; on this processor TW_OK. */
tw_status_t tw_model_finish(tw_model_t *model);
/** Likewise for the last call that gave a unit gradients: others, which came later, may go on. */
tw_status_t tw_model_finish_unit(tw_model_t *model, size_t unit);
/** A whole buffer of tw_buffer_alloc that weights come from, or go to, is there to stay, until unpin, which
 *  waits for copies: they become faster. 0: it is not pinned, and must not be unpinned; on this processor,
 *  of a small buffer, or because the system does not allow it. */
int tw_model_pin(tw_model_t *model, void *start, size_t bytes);
void tw_model_unpin(tw_model_t *model, void *start);

/* In what follows
 *   weights  one pointer per tensor of the unit, each [n_elems] of tw_model_weight_type (whole tensors);
 *   grads    one pointer per tensor of the unit, each fp32[n_elems], to which gradients are added: they are
 *            there after tw_model_finish, the root's when embed_backward has been called too. NULL for a
 *            matrix: its gradient is not wanted, and not computed; the others' bits stay;
 *   x, y, dx, dy  fp32 (B,T,C), saved: saved_bytes aligned to 64 bytes; all of it the caller's, borrowed for
 *                 the call. On a device they are tw_model_alloc's, and hold what the device keeps there.
 * Pointers need element alignment. Nothing fails once the arguments are right; tokens are the exception, and
 * a device: after an error its calls do nothing, and those that return a status return it. */

/** x = wte[token] + wpe[position], the latter in GPT-2 only. tokens int32 (B,T). TW_ERR_INVALID: a token
 *  outside the vocabulary; logged. */
tw_status_t tw_model_embed_forward(tw_model_t *model, const void *const *weights, const int32_t *tokens,
                                   float *x);
/** Adds dx to the gradients of the embeddings. The tokens have been through embed_forward. */
void tw_model_embed_backward(tw_model_t *model, const int32_t *tokens, const float *dx, float *const *grads);

/** y must not overlap x. saved may be NULL: nothing is kept (evaluation, or recomputation later). */
void tw_model_block_forward(tw_model_t *model, size_t unit, const void *const *weights, const float *x,
                            float *y, void *saved);
/** x: what the block got; saved: what block_forward left (recomputing: call it again first). On entry d is
 *  the loss's gradient by y, on return that by x. */
void tw_model_block_backward(tw_model_t *model, size_t unit, const void *const *weights, const float *x,
                             const void *saved, float *d, float *const *grads);

#define TW_MODEL_NO_TARGET (-1)
/** Last norm, logits, cross-entropy. loss: the mean over the B * T targets, unscaled. dx and grads are of
 *  scale * loss (scale: 1 / number of micro-batches of a step); both NULL for evaluation; dx may be x.
 *  targets int32 (B,T); TW_MODEL_NO_TARGET: no loss there. TW_ERR_INVALID: a target outside the vocabulary;
 *  logged. */
tw_status_t tw_model_head(tw_model_t *model, const void *const *weights, const float *x,
                          const int32_t *targets, float scale, double *loss, float *dx, float *const *grads);
/** The mean loss of each sequence, [B], for evaluation: its last bits may depend on B. TW_ERR_INVALID as
 *  above. */
tw_status_t tw_model_losses(tw_model_t *model, const void *const *weights, const float *x,
                            const int32_t *targets, double *losses);

/** Logits of the word that follows token `at` of each sequence, at < T. logits fp32 (B,V), the caller's. */
void tw_model_logits(tw_model_t *model, const void *const *weights, const float *x, size_t at, float *logits);

/* ---- matrices ------------------------------------------------------------------------------------------ */

/** What a matrix takes: floats of scratch, and, where the model computes on a device, bytes there. */
typedef struct tw_model_orthogonal {
    size_t scratch_elems, near_bytes;
} tw_model_orthogonal_t;
tw_model_orthogonal_t tw_model_orthogonal_of(const tw_model_t *model, size_t rows, size_t cols);
/** x fp32 (rows,cols) becomes a matrix of about the same singular vectors, whose singular values are all near
 *  1 (0.7 to 1.2): five steps of Newton and Schulz, of degree 5, in fp32, on a device in bf16 with sums of
 *  fp32. A matrix of zeros stays so. The same bits on all ranks of one kind of processor, or device.
 *  near: tw_model_alloc's; NULL on this processor. Done on return. TW_ERR_CUDA, of a device.
 *  Source: Keller Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024). */
tw_status_t tw_model_orthogonalize(tw_model_t *model, size_t rows, size_t cols, float *x, float *scratch,
                                   void *near);

TW_C_END
