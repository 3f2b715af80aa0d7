/* The table of keys: name, default, range, meaning, and where the value goes. */
#include <stddef.h>
#include <string.h>

#include "trainer/config/config.h"
#include "trainer/config/table.h"
#include "trainer/model/family.h"

#define AT(member) offsetof(tw_train_options_t, member)
#define MANY 1e15
#define FLAG(key, dflt_, member, doc_)                                                                    \
    {                                                                                                     \
        .name = key, .dflt = dflt_, .unit = "", .doc = doc_, .type = TW_CONFIG_BOOL, .offset = AT(member) \
    }
#define COUNT(key, dflt_, member, least, most, unit_, doc_)                                                  \
    {                                                                                                        \
        .name = key, .dflt = dflt_, .unit = unit_, .doc = doc_, .type = TW_CONFIG_INT, .offset = AT(member), \
        .min = least, .max = most                                                                            \
    }
#define REAL(key, dflt_, member, least, most, doc_)                                                          \
    {                                                                                                        \
        .name = key, .dflt = dflt_, .unit = "", .doc = doc_, .type = TW_CONFIG_DOUBLE, .offset = AT(member), \
        .min = least, .max = most                                                                            \
    }
#define SIZE(key, dflt_, member, doc_)                                                     \
    {                                                                                      \
        .name = key, .dflt = dflt_, .unit = "bytes", .doc = doc_, .type = TW_CONFIG_BYTES, \
        .offset = AT(member)                                                               \
    }
#define TEXT(key, member, doc_) WORD(key, "", member, doc_)
#define WORD(key, dflt_, member, doc_)                                                                      \
    {                                                                                                       \
        .name = key, .dflt = dflt_, .unit = "", .doc = doc_, .type = TW_CONFIG_STRING, .offset = AT(member) \
    }
#define CHOICE(key, dflt_, member, choices_, doc_)                                                         \
    {                                                                                                      \
        .name = key, .dflt = dflt_, .unit = "", .doc = doc_, .type = TW_CONFIG_ENUM, .offset = AT(member), \
        .choices = choices_                                                                                \
    }

static const char *const optimizers[] = {"AdamW", "Adam", "Muon", NULL}; /* of tw_train_optimizer_t */
/* in the order of tw_train_schedule_t */
static const char *const schedules[] = {"none", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "WSD", NULL};
static const char *const decays[] = {"linear", "sqrt", NULL};
static const char *const warmups[] = {"linear", "log", NULL};
static const char *const places[] = {"none", "cpu", "nvme", NULL};
static const char *const switches[] = {"auto", "off", "on", NULL};
/* in the order of tw_model_rope_type_t */
static const char *const ropes[] = {"default", "linear", "llama3", "yarn", NULL};
static const char *const bads[] = {"stop", "skip", "rollback", NULL};   /* of tw_train_bad_t */
static const char *const styles[] = {"none", "chatml", "llama3", NULL}; /* of tw_data_style_t */
static const char *const memories[] = {"host", "device", NULL};         /* of tw_train_replicas_t */
static const char *const devices[] = {"cpu", "cuda", NULL};             /* of tw_train_device_t */
/* in the order of tw_train_products_t */
static const char *const products[] = {"auto", "fp32", "bf16", NULL};
static const char *const gathers[] = {"bf16", "fp8", NULL};         /* of tw_train_gather_t */
static const char *const communications[] = {"bf16", "fp32", NULL}; /* of tw_train_communication_t */
static const char *const inners[] = {"plain", "int8", NULL};

static const tw_config_field_t fields[] = {
    /* ---- DeepSpeed's, the whole job ---- */
    COUNT("train_batch_size", "0", batch, 0, 1e12, "sequences",
          "Of a step, over all ranks: micro-batch x accumulation x ranks. 0: follows from those."),
    COUNT("train_micro_batch_size_per_gpu", "0", micro_batch, 0, 1e6, "sequences",
          "Of a rank, at a time. 0: follows from the others, or 1."),
    COUNT("gradient_accumulation_steps", "0", accumulation, 0, 1e6, "",
          "Micro-batches of a step; gradients are reduced after the last. 0: follows from the others, or 1."),
    REAL("gradient_clipping", "1.0", clip, 0, 1e30, "Largest 2-norm of the gradient; 0: not clipped."),
    COUNT("steps_per_print", "10", steps_per_print, 1, MANY, "steps",
          "Where the output is no terminal, a line each so many steps."),
    FLAG("wall_clock_breakdown", "n", wall_clock_breakdown, "Print where a step's time went."),
    FLAG("bf16.enabled", "y", bf16,
         "Weights are bf16, beside masters in fp32. n: they are fp32, and their own masters, as are products "
         "(whole, not as TF32) and, where communication_data_type does not say otherwise, gradients; for "
         "stages 0 to 3 and hpZ, without deltas."),
    CHOICE("communication_data_type", "bf16", communication, communications,
           "What gradients travel as, and what qgZ and the lossless code are made of; sums are fp32 either "
           "way. With bf16.enabled false the default is fp32."),
    FLAG("fp32_allreduce", "n", fp32_allreduce, "An older name of communication_data_type fp32."),
    FLAG("fp16.enabled", "n", fp16, "Refused: there is no loss scaling, bf16 needs none."),
    CHOICE("optimizer.type", "AdamW", optimizer, optimizers,
           "AdamW and Adam are AdamW, as DeepSpeed's Adam is; Muon is for layers' matrices, with AdamW for "
           "all else."),
    REAL("optimizer.params.lr", "6e-4", lr, 0, 10, "Peak learning rate."),
    REAL("optimizer.params.betas[0]", "0.9", beta1, 0, 0.999999, "Decay of the first moment."),
    REAL("optimizer.params.betas[1]", "0.95", beta2, 0, 0.9999999, "Decay of the second moment."),
    REAL("optimizer.params.eps", "1e-8", eps, 0, 1, "Added to the second moment's root."),
    REAL("optimizer.params.weight_decay", "0.1", weight_decay, 0, 1,
         "Of tensors of two dimensions; norms and biases do not decay."),
    FLAG("optimizer.params.adam_w_mode", "y", adam_w_mode,
         "n with optimizer.type Adam is Adam with weight_decay in the gradient, which is refused unless that "
         "is 0."),
    FLAG("optimizer.params.bias_correction", "y", bias_correction, "Refused without."),
    FLAG("optimizer.params.amsgrad", "n", amsgrad, "Refused: moments are Adam's."),
    REAL("optimizer.params.muon_lr", "0.02", muon_lr, 0, 10,
         "Muon: peak rate of matrices, which the schedule changes as it does optimizer.params.lr."),
    REAL("optimizer.params.momentum", "0.95", momentum, 0, 0.999999, "Muon: of matrices, Nesterov's."),
    CHOICE("scheduler.type", "WarmupCosineLR", schedule, schedules, "How the learning rate changes."),
    REAL("scheduler.params.warmup_min_lr", "0", warmup_min_lr, 0, 10, "At the start of the warm-up."),
    REAL("scheduler.params.warmup_max_lr", "0", warmup_max_lr, 0, 10, "At its end; 0: optimizer.params.lr."),
    COUNT("scheduler.params.warmup_num_steps", "100", warmup_steps, 0, MANY, "steps",
          "Length of the warm-up."),
    COUNT("scheduler.params.total_num_steps", "0", total_steps, 0, MANY, "steps",
          "End of decay or cosine; 0: thinwire.steps."),
    CHOICE("scheduler.params.warmup_type", "linear", warmup_type, warmups,
           "A line, or as the logarithm of the step, which is the default where a file names WarmupLR, "
           "WarmupDecayLR or WarmupCosineLR, as it is DeepSpeed's."),
    REAL("scheduler.params.warmup_min_ratio", "0", warmup_min_ratio, 0, 1,
         "WarmupCosineLR: share of the peak at the start."),
    REAL("scheduler.params.cos_min_ratio", "0.1", cos_min_ratio, 0, 1,
         "WarmupCosineLR: share of the peak at the end."),
    COUNT("scheduler.params.decay_num_steps", "0", decay_steps, 0, MANY, "steps",
          "WSD: length of the decay at the end, before it the peak is kept; 0: a fifth of all."),
    CHOICE("scheduler.params.decay_type", "sqrt", decay_type, decays,
           "WSD: a line, or 1 - the root of the share of the decay that is done."),
    REAL("scheduler.params.decay_min_ratio", "0", decay_min_ratio, 0, 1,
         "WSD: share of the peak at the end."),
    /* ---- DeepSpeed's, ZeRO ---- */
    COUNT("zero_optimization.stage", "3", stage, 0, 3, "",
          "0: all ranks hold everything; 1: optimizer state is sharded; 2: gradients too; 3: weights too."),
    COUNT("zero_optimization.zero_hpz_partition_size", "1", hpz_size, 1, 4096, "ranks",
          "hpZ: ranks per node that share a secondary partition of the weights; 1: off, see thinwire.hpz."),
    FLAG("zero_optimization.zero_quantized_weights", "n", older.quantized_weights,
         "qwZ: thinwire.weights=int8."),
    FLAG("zero_optimization.zero_quantized_gradients", "n", older.quantized_gradients,
         "qgZ: thinwire.gradients=int4."),
    COUNT("zero_optimization.reduce_bucket_size", "500000000", reduce_bucket, 0, MANY, "elements",
          "Most gradients that one operation reduces."),
    COUNT(
        "zero_optimization.allgather_bucket_size", "500000000", allgather_bucket, 1, MANY, "elements",
        "Most weights that one operation gathers (stages 1 and 2), or whose changes are under way (delta)."),
    COUNT("zero_optimization.stage3_prefetch_bucket_size", "0", prefetch_elems, 0, MANY, "elements",
          "Stage 3: weights gathered ahead of need, at least one layer; 0: one layer."),
    COUNT("zero_optimization.stage3_max_live_parameters", "1000000000", max_live_elems, 0, MANY, "elements",
          "Stage 3: most gathered weights held at a time; never less than the root and one layer."),
    FLAG("zero_optimization.overlap_comm", "y", overlap, "Communicate while computing."),
    CHOICE("zero_optimization.offload_optimizer.device", "none", offload_optimizer, places,
           "Where master weights and moments live: \"none\" is the device, \"cpu\" host memory, \"nvme\" a "
           "file in nvme_path."),
    TEXT("zero_optimization.offload_optimizer.nvme_path", offload_optimizer_path, "Folder for \"nvme\"."),
    CHOICE("zero_optimization.offload_param.device", "none", offload_param, places,
           "Stage 3: where the weights' shards and replicas live; layers are gathered from there."),
    TEXT("zero_optimization.offload_param.nvme_path", offload_param_path, "Folder for \"nvme\"."),
    FLAG("activation_checkpointing.cpu_checkpointing", "n", cpu_checkpointing,
         "Layers' inputs go to host memory until backward needs them; switches thinwire.recompute on."),
    /* ---- ours ---- */
    COUNT("thinwire.steps", "300", steps, 0, MANY, "steps",
          "Length of the run; 0: only a validation of what resume or model.init_from gives."),
    COUNT("thinwire.seed", "1", seed, 0, MANY, "", "Of initial weights, order of data and rounding."),
    COUNT("thinwire.sequence_length", "128", sequence, 1, 1e6, "tokens", "Of each sequence."),
    REAL("thinwire.epochs", "0", epochs, 0, 1e6,
         "Length of the run in passes through the training data, in place of thinwire.steps; 0: as that "
         "says."),
    TEXT("thinwire.data", data,
         "UTF-8 text, .bin of tokens, or .jsonl of examples; patterns and several with commas; "
         "PATTERN:WEIGHT,PATTERN:WEIGHT takes so much of each; nothing: the King James text."),
    COUNT("thinwire.document_token", "-1", document_token, -1, 1048575, "",
          "Token that documents begin with, such as 50256: sequences begin at one where one comes within "
          "their length; -1: anywhere."),
    FLAG("thinwire.document_mask", "n", document_mask,
         "Attention within a sequence does not reach back beyond the last thinwire.document_token."),
    CHOICE("thinwire.chat_style", "none", chat_style, styles,
           "How messages in .jsonl files are written: as ChatML (Qwen) or Llama 3's templates have them, "
           "without what those add by themselves; what the assistant says is learned."),
    TEXT("thinwire.chat_end", chat_end,
         "Comes after a text and a completion in .jsonl files, and is learned, such as <|endoftext|>; "
         "nothing: nothing."),
    FLAG("thinwire.loss_mask", "n", loss_mask,
         "Beside each NAME.bin lies NAME.mask, a byte for each token: 0: it is read, but not learned. Losses "
         "are means of what is."),
    COUNT("thinwire.token_bytes", "0", token_bytes, 0, 4, "bytes",
          "Of a token in .bin files: 2 or 4; 0: as their header says, or 2. 1: any file, byte by byte."),
    TEXT("thinwire.val_data", val_data, "For validation; nothing: the end of thinwire.data."),
    TEXT("thinwire.vocab", vocab, "vocab.json of GPT-2's tokenizer; nothing: a token per byte."),
    TEXT("thinwire.merges", merges, "merges.txt of the same."),
    TEXT("thinwire.tokenizer", tokenizer,
         "tokenizer.json, instead of both. Python's package tokenizers reads it; TW_PYTHON names the Python "
         "that has it (python3)."),
    TEXT("thinwire.cache", cache, "Folder for encoded text; nothing: the user's cache."),
    REAL("thinwire.val_share", "0.05", val_share, 0, 0.5, "Share of the data that is kept for validation."),
    COUNT("thinwire.val_every", "0", val_every, 0, MANY, "steps", "Validation loss so often; 0: at the end."),
    COUNT(
        "thinwire.val_sequences", "32", val_sequences, 0, MANY, "sequences",
        "Of a validation: the first ones of the text kept for it, on any number of ranks; 0: no validation."),
    COUNT("thinwire.sample_steps", "0", sample_steps, 0, MANY, "steps",
          "Text sampled from the model so often, to the console and the metrics; 0: never."),
    COUNT("thinwire.sample_lines", "3", sample_lines, 1, 64, "", "Texts that are sampled at a time."),
    COUNT("thinwire.sample_tokens", "64", sample_tokens, 1, 65536, "tokens", "Of each."),
    TEXT("thinwire.sample_prompt", sample_prompt,
         "What each begins with, after thinwire.document_token where that is given; nothing: an end of line, "
         "or that token alone."),
    REAL("thinwire.sample_temperature", "0.8", sample_temperature, 0, 100,
         "Logits are divided by it before a token is drawn (by thinwire.seed, step, line and place); 0: the "
         "likeliest token always."),
    CHOICE("thinwire.hpz", "auto", hpz, switches,
           "Secondary partition of the weights in each node; auto: as zero_hpz_partition_size or delta ask."),
    CHOICE("thinwire.replicas", "host", replicas, memories,
           "Where that partition lies: the host's memory, or the GPU's (thinwire.device cuda), where gathers "
           "in the node and lossless changes then stay."),
    WORD("thinwire.weights", "plain", weights,
         "How weights cross the network. Without loss: plain, lossless, or delta, which sends what has "
         "changed since the last step; with loss: delta8, delta4, delta2, int8, int4, with options such as "
         "int8:block=2048. TW_WEIGHTS' words."),
    WORD("thinwire.gradients", "plain", gradients,
         "How gradients cross the network. Without loss: plain, lossless; with loss: int8, int4, which are "
         "rotated first unless they say hadamard=no. TW_GRADS' words."),
    CHOICE("thinwire.gradient_inner", "plain", gradient_inner, inners,
           "How rounded gradients go inside the node."),
    /* older keys, which thinwire.weights and thinwire.gradients replace */
    COUNT("thinwire.delta_bits", "0", older.delta_bits, 0, 8, "bits",
          "thinwire.weights=delta8, delta4 or delta2; 0: off."),
    FLAG("thinwire.delta_lossless", "n", older.delta_lossless, "thinwire.weights=delta."),
    COUNT("thinwire.delta_block", "0", older.delta_block, 0, 4096, "elements",
          "thinwire.weights=delta4:block=...; 0: the codec's own."),
    FLAG("thinwire.delta_hadamard", "y", older.delta_hadamard, "n: thinwire.weights=delta4:hadamard=no."),
    REAL("thinwire.lag_bound", "0", lag_bound, 0, 1e30,
         "Report blocks whose |master - replica| is more than so many updates; 0: never."),
    FLAG("thinwire.lag_plain", "n", lag_plain, "And send those plain."),
    COUNT("thinwire.sync_every", "0", sync_every, 0, MANY, "steps", "A full sync so often; 0: never."),
    COUNT("thinwire.check_every", "0", check_every, 0, MANY, "steps",
          "Compare the replicas' checksums so often; 0: as TW_HPZ_CHECK_STEPS says."),
    FLAG("thinwire.lossless_weights", "n", older.lossless_weights, "thinwire.weights=lossless."),
    FLAG("thinwire.lossless_gradients", "n", older.lossless_gradients, "thinwire.gradients=lossless."),
    COUNT("thinwire.weight_block", "2048", older.weight_block, 32, 4096, "elements",
          "thinwire.weights=int8:block=..."),
    COUNT("thinwire.gradient_bits", "4", older.gradient_bits, 4, 8, "bits",
          "thinwire.gradients=int4 or int8, with zero_quantized_gradients."),
    COUNT("thinwire.gradient_block", "128", older.gradient_block, 32, 4096, "elements",
          "thinwire.gradients=int4:block=..."),
    FLAG("thinwire.gradient_hadamard", "y", older.gradient_hadamard,
         "n: thinwire.gradients=int4:hadamard=no."),
    CHOICE("thinwire.device", "cpu", device, devices,
           "What the model computes on: cuda is a GPU for each rank, of its number on the machine, which has "
           "the optimizer, too (see offload_optimizer). Weights stay in host memory, and replicas unless "
           "thinwire.replicas is device. It has not met a GPU yet."),
    CHOICE("thinwire.products", "auto", products, products,
           "What activations and gradients are rounded to for products, whose sums are fp32: auto is bf16 "
           "where the processor multiplies it faster and weights are bf16, else fp32. On a GPU they are what "
           "weights are."),
    COUNT("thinwire.threads", "0", threads, 0, 1024, "",
          "Of a rank, that compute; the results do not depend on it, and ranks may have different ones. 0: "
          "its cores, shared with the other ranks that run on them."),
    FLAG("thinwire.recompute", "n", recompute,
         "Keep layers' inputs only, and compute them again for backward."),
    TEXT("thinwire.activation_path", activation_path,
         "Folder: layers' inputs go to a file there, as with cpu_checkpointing; nothing: they do not."),
    SIZE("thinwire.device_mem", "0", device_bytes,
         "What a rank's device holds; a run that needs more does not start. On CPUs a count of all memory "
         "but what is offloaded; on a GPU of what lies there. 0: not looked at."),
    FLAG("thinwire.check_memory", "y", check_memory,
         "Refuse a run whose ranks need more memory than their machine or control group has."),
    REAL("thinwire.loss_jump", "0", loss_jump, 0, 1e30,
         "Stop when the loss is so many times the mean of the last 20; 0: never."),
    REAL("thinwire.loss_z", "0", loss_z, 0, 1e30,
         "A loss is bad if it is so many standard deviations above the mean of the last z_window; 0: never."),
    REAL("thinwire.norm_z", "0", norm_z, 0, 1e30, "The same of the gradient's norm."),
    COUNT("thinwire.z_window", "128", z_window, 2, 1024, "steps",
          "What loss_z and norm_z compare with; before there are so many, nothing is bad."),
    CHOICE("thinwire.bad_step", "stop", bad_step, bads,
           "Where loss or gradient is not finite or out of bounds (loss_jump, loss_z, norm_z): stop; skip: "
           "leave the weights as they are; rollback: go back to the last checkpoint, and pass over the data "
           "since."),
    COUNT("thinwire.bad_steps_most", "20", bad_steps_most, 1, MANY, "",
          "Stop after so many bad steps in a row, or so many rollbacks."),
    TEXT("thinwire.groups", groups,
         "Tensors that are trained otherwise: \"PATTERN WORD ..., ...\", the words being frozen, lr=FACTOR "
         "and decay=NUMBER; the first pattern that matches counts."),
    FLAG("thinwire.keep_frozen", "y", keep_frozen,
         "Stage 3 without a delta: each rank keeps whole frozen tensors, gathered once, 2 bytes a parameter "
         "(4 in fp32); n: they are gathered as others."),
    REAL("thinwire.peak_flops", "0", peak_flops, 0, 1e18,
         "Most operations a second that a rank's processor can do, for the line that says how much of it is "
         "used (MFU); 0: not known."),
    {.name = "thinwire.link",
     .dflt = "none",
     .unit = "bits/s",
     .doc = "Of a node, each way, for the line that says how much of it is used; none: not known.",
     .type = TW_CONFIG_RATE,
     .offset = AT(link_bps)},
    TEXT("thinwire.checkpoint", checkpoint, "Folder of checkpoints; nothing: none are written."),
    COUNT("thinwire.checkpoint_every", "0", checkpoint_every, 0, MANY, "steps", "0: at the end only."),
    REAL("thinwire.checkpoint_minutes", "0", checkpoint_minutes, 0, 1e9,
         "And one so often, by the clock of rank 0; 0: not by the clock."),
    COUNT("thinwire.checkpoint_keep", "2", checkpoint_keep, 1, 1000, "", "Of the last ones."),
    TEXT("thinwire.resume", resume,
         "Folder of checkpoints to go on from, or a step's; auto: thinwire.checkpoint's newest that is "
         "whole, or anew where there is none; nothing: start anew."),
    TEXT("thinwire.save_model", save_model,
         "Folder for the trained weights as transformers reads them; needs thinwire.checkpoint; nothing: "
         "none."),
    TEXT("thinwire.save_best", save_best,
         "Folder for the weights with the lowest validation loss so far, likewise; needs "
         "thinwire.checkpoint."),
    /* ---- the model ---- */
    TEXT("model.preset", preset,
         "gpt2, gpt2-medium, gpt2-large, gpt2-xl, llama2-7b, llama3.1-8b, llama3.2-1b, llama3.2-3b, "
         "mistral-7b, "
         "qwen2.5-0.5b, -1.5b, -7b, qwen3-0.6b, -1.7b, -4b, -8b; nothing: as the other keys say."),
    CHOICE("model.family", "gpt2", family, tw_model_family_names,
           "What the model is built like: Qwen2 has biases on q, k and v, Qwen3 norms of their heads."),
    COUNT("model.n_params", "0", n_params, 0, 1e12, "",
          "A GPT-2's shape of about so many parameters; 0: as below."),
    COUNT("model.n_layer", "4", n_layer, 1, 10000, "", "Layers."),
    COUNT("model.n_head", "4", n_head, 1, 10000, "", "Attention heads; in GPT-2 a divisor of n_embd."),
    COUNT("model.n_embd", "128", n_embd, 1, 1e6, "", "Width."),
    COUNT("model.n_positions", "0", n_positions, 0, 16777216, "tokens",
          "Longest sequence; 0: thinwire.sequence_length."),
    COUNT("model.vocab_size", "0", vocab_size, 0, 1048576, "", "0: the data's."),
    REAL("model.layer_norm_epsilon", "1e-5", layer_norm_epsilon, 0, 1, "Of all norms."),
    /* keys of the Llama families, which are all but gpt2 */
    COUNT("model.n_kv_head", "0", n_kv_head, 0, 1024, "", "Heads of k and v; divides n_head. 0: n_head."),
    COUNT("model.head_dim", "0", head_dim, 0, 1024, "", "Width of a head, even; 0: n_embd / n_head."),
    COUNT("model.n_inner", "0", n_inner, 0, 262144, "",
          "Width between gate and down; 0: 8/3 of n_embd, up to a multiple of 64."),
    FLAG("model.tie_word_embeddings", "n", tied, "The output layer is the embedding, as in GPT-2."),
    REAL("model.rope_theta", "10000", rope_theta, 1.001, 1e12, "Base of the rotary angles."),
    CHOICE("model.rope_scaling.rope_type", "default", rope_type, ropes,
           "How rotary angles are stretched; the keys below are config.json's."),
    REAL("model.rope_scaling.factor", "1", rope_factor, 1, 1e6, "By how much."),
    COUNT("model.rope_scaling.original_max_position_embeddings", "0", rope_positions, 0, 16777216, "tokens",
          "llama3, yarn: longest text of the first training; 0: n_positions."),
    REAL("model.rope_scaling.low_freq_factor", "1", rope_low, 1e-6, 1e6, "llama3."),
    REAL("model.rope_scaling.high_freq_factor", "4", rope_high, 1e-6, 1e6, "llama3."),
    REAL("model.rope_scaling.beta_fast", "32", rope_fast, 1e-6, 1e6, "yarn."),
    REAL("model.rope_scaling.beta_slow", "1", rope_slow, 1e-6, 1e6, "yarn."),
    REAL("model.rope_scaling.attention_factor", "0", rope_attention, 0, 1e3,
         "yarn: of cosines and sines; 0: 0.1 ln(factor) + 1."),
    COUNT("model.sliding_window", "0", window, 0, 16777216, "tokens",
          "A token sees so many, itself among them; 0: all before it."),
    COUNT("model.max_window_layers", "0", window_from_layer, 0, 10000, "",
          "Layers at the bottom that see all the same."),
    FLAG("model.attention_bias", "n", attention_bias, "llama, qwen3: q, k, v and o have biases."),
    CHOICE("model.gather", "bf16", gather, gathers,
           "fp8: products take layers' matrices rounded to e4m3, under a power of two for each; masters keep "
           "all, changes of thinwire.weights=delta are of the codes."),
    TEXT("model.init_from", init_from,
         "Folder of a model as transformers saves it, or a safetensors file, to start from its weights; "
         "config.json beside them gives family and shape."),
};

const tw_config_table_t tw_train_options_table = TW_CONFIG_TABLE("trainer", fields, tw_train_options_t);

int tw_train_field_of(const char *key)
{
    for (size_t i = 0; i < tw_train_options_table.n_fields; i++) {
        if (strcmp(tw_train_options_table.fields[i].name, key) == 0) {
            return (int)i;
        }
    }
    return -1;
}
