/** trainer/engine: training with the ZeRO stages. The engine sees a model as units and tensors (model.h), and
 *  uses the network through a communicator and hpZ.
 *
 *  Every unit's tensors are divided evenly over the ranks; a rank's part is its shard. In stage 0 a rank
 *  holds everything, and gradients are all-reduced. In stage 1 it holds only a shard of the optimizer's
 *  state; in stage 2 also only a shard of gradients; in stage 3 also only a shard of weights, and a unit is
 *  gathered when it is needed. Gradients are summed over ranks as bf16 or fp32, in an order that does not
 *  depend on the stage, and the norm's sum of squares is an exact integer. So without lossy codecs all stages
 *  give the same losses bit for bit.
 *
 *  Threads: one thread calls an engine, and the threads of the model's pool compute with it. Meanwhile the
 *  communicator's progress thread runs gathers and reductions. */
#pragma once

#include "collectives/collectives.h"
#include "hpz/hpz.h"
#include "trainer/config/config.h"
#include "trainer/data/data.h"
#include "trainer/model/model.h"
#include "trainer/trainer.h"

TW_C_BEGIN

typedef struct tw_engine tw_engine_t;

/** Functions of the caller that a step calls; each may be NULL. */
typedef struct tw_engine_hooks {
    /** Returns this rank's notices: 32 bits that are exchanged with all ranks (tw_engine_notices_t). Called
     *  once a step, after gradients are reduced. */
    uint32_t (*notices)(void *ctx);
    /** Called on all ranks before masters and moments change. It may run collectives if the decision depends
     *  only on the step's notices, which all ranks know. */
    tw_status_t (*before_update)(void *ctx);
    void *ctx;
} tw_engine_hooks_t;

/** The ranks' notices of the last step, combined. All ranks have the same values. */
typedef struct tw_engine_notices {
    uint32_t any, all, first; /**< bits that at least one rank set, that every rank set, that rank 0 set */
} tw_engine_notices_t;

/** Parameters of an engine. All pointers are borrowed for the engine's life. */
typedef struct tw_engine_params {
    const tw_train_options_t *options; /**< after tw_train_config_resolve */
    tw_model_t *model;                 /**< the engine calls tw_model_reserve for its micro-batches */
    const tw_data_t *data;
    tw_coll_t *coll; /**< deterministic, with a progress thread */
    tw_engine_hooks_t hooks;
} tw_engine_params_t;

/** Make an engine, with initial weights drawn from the seed. Collective. TW_ERR_NO_MEMORY; TW_ERR_CONFIG,
 *  logged, for instance if this rank needs more than thinwire.device_mem; or the communicator's errors. */
tw_status_t tw_engine_create(const tw_engine_params_t *params, tw_engine_t **out);
void tw_engine_destroy(tw_engine_t *engine);

/** The part of a tensor whose optimizer's state is on this rank: elements first .. first + n_elems - 1. In
 *  stage 0 pieces are whole tensors. */
typedef struct tw_engine_piece {
    size_t tensor, first, n_elems;
    float *master, *m, *v; /**< m and v are NULL for a frozen tensor */
} tw_engine_piece_t;
/** Return this rank's pieces; borrowed. To load a checkpoint, write into all pieces, then call
 *  tw_engine_loaded and tw_engine_bring_state. If the optimizer runs on a device, each step makes the
 *  pieces stale, until tw_engine_sync (in stage 0 on rank 0 alone) or tw_engine_bring_state. */
const tw_engine_piece_t *tw_engine_pieces(const tw_engine_t *engine, size_t *n_pieces);
/** Compute all ranks' weights from the masters, which the caller has written. Lossy codecs are not used.
 *  Collective. step: steps done. recent_loss: tw_engine_recent_loss after that step, or 0 if unknown. */
tw_status_t tw_engine_loaded(tw_engine_t *engine, uint64_t step, double recent_loss);
/** After tw_engine_loaded, copy the optimizer's state to its device, if it has one. Not collective.
 *  TW_ERR_CUDA. */
tw_status_t tw_engine_bring_state(tw_engine_t *engine);
/** The history that a checkpoint saves: to recognize bad steps, and to find the next batch. */
typedef struct tw_engine_past {
    uint64_t passed_over;  /**< batches skipped by rollbacks; the next batch is steps done + passed_over */
    const double *history; /**< [n_history]: losses of the last steps, the oldest first; then their norms */
    size_t n_history;      /**< an even number */
} tw_engine_past_t;
/** Return the history; borrowed until the next step. */
tw_engine_past_t tw_engine_past_get(tw_engine_t *engine);
/** Set the history, together with tw_engine_loaded. Only its last thinwire.z_window steps are kept. */
void tw_engine_past_set(tw_engine_t *engine, const tw_engine_past_t *past);
/** Set how many batches rollbacks have skipped in total. */
void tw_engine_pass_over(tw_engine_t *engine, uint64_t batches);
/** Return the moving mean of losses, to which thinwire.loss_jump compares a new loss; 0: no step yet. */
double tw_engine_recent_loss(const tw_engine_t *engine);
uint64_t tw_engine_steps_done(const tw_engine_t *engine);
/** Return the notices of the last step. */
tw_engine_notices_t tw_engine_heard(const tw_engine_t *engine);

/** Train on the next batch. Collective. TW_ERR_MISMATCH is an alarm, logged with rank and tensor: the
 *  gradient's norm is zero or not finite, the loss jumped, or replicas differ. If thinwire.bad_step is "skip"
 *  or "rollback", up to thinwire.bad_steps_most bad steps are no errors: rank 0 logs them, out->is_bad is 1,
 *  nothing is updated, and the step counts as done. With "rollback" the caller then loads a checkpoint. */
tw_status_t tw_engine_step(tw_engine_t *engine, tw_trainer_step_t *out);
/** Compute the mean loss over the first thinwire.val_sequences sequences of the validation split (fewer if
 *  the split has fewer); NaN if it has none. The loss does not depend on the number of ranks. Its last bits
 *  depend on the size of micro-batches. Collective. */
tw_status_t tw_engine_validate(tw_engine_t *engine, double *loss);
/** Lines of text that the model continues. Used on rank 0 only. */
typedef struct tw_engine_lines {
    const int32_t *prompt; /**< [n_prompt]: tokens that all lines begin with */
    size_t n_prompt;       /**< at least 1 */
    int32_t *tokens;       /**< output, [thinwire.sample_lines][thinwire.sample_tokens]: the sampled tokens */
} tw_engine_lines_t;

/** Sample from the current weights, as the options thinwire.sample_* say. Random draws depend only on seed,
 *  step, line and token index. All ranks gather the weights once. Then rank 0 runs a forward pass for each
 *  token, and the other ranks wait without a time limit. In stage 3 rank 0 meanwhile holds the whole model in
 *  the weights' type. Collective; other ranks than 0 ignore `sample`. TW_ERR_INVALID: a token of the prompt
 *  is outside the vocabulary; TW_ERR_NO_MEMORY. */
tw_status_t tw_engine_sample(tw_engine_t *engine, const tw_engine_lines_t *sample);
/** Return the bytes that sampling takes on rank 0 besides whole weights: activations and scratch. */
size_t tw_engine_sample_bytes(const tw_train_options_t *options, const tw_model_t *model);

/** Prepare for a checkpoint. If the delta codec is lossy, set all replicas exactly to the masters (a full
 *  sync). If the optimizer's state is on a device, copy it to host memory. Collective. */
tw_status_t tw_engine_sync(tw_engine_t *engine);
/** Check that all copies of weights are equal: all ranks' weights in stages 0 to 2, all nodes' replicas with
 *  hpZ. If they differ, *equal is 0 and the log names rank and tensor. Collective. */
tw_status_t tw_engine_check(tw_engine_t *engine, int *equal);
/** Return 1 if TW_HPZ_CHECK_STEPS (check every so many steps) asks for tw_engine_check now. */
int tw_engine_check_due(const tw_engine_t *engine);
/** Return the largest lag of replicas behind their masters after the last deltas, in updates. *n_blocks
 *  counts the blocks that lagged more than thinwire.lag_bound so far. */
double tw_engine_lag(const tw_engine_t *engine, uint64_t *n_blocks);

/** Purposes of memory. The first three can be offloaded to host memory or files. */
typedef enum tw_engine_holding {
    TW_ENGINE_OPTIMIZER, /**< moments, and masters unless the weights themselves are fp32 */
    TW_ENGINE_WEIGHTS,   /**< shards, replicas with their previous changes, and whole weights */
    TW_ENGINE_INPUTS,    /**< the inputs of layers that backward needs */
    TW_ENGINE_GRADIENTS,
    TW_ENGINE_MOVING,      /**< buffers that weights and gradients are sent from and received in */
    TW_ENGINE_ACTIVATIONS, /**< all activations except TW_ENGINE_INPUTS */
    TW_ENGINE_SCRATCH,     /**< scratch of the model and the optimizer; what sampling takes on rank 0 */
    TW_ENGINE_HOLDING_COUNT
} tw_engine_holding_t;

/** Bytes that a rank holds, by purpose: in host memory, in files, and in a GPU's memory. */
typedef struct tw_engine_memory {
    size_t host[TW_ENGINE_HOLDING_COUNT], files[TW_ENGINE_HOLDING_COUNT], gpu[TW_ENGINE_HOLDING_COUNT];
    /** further host memory with a delta: while the first sync (a full one) runs; while a later sync runs */
    size_t first_sync, sync;
} tw_engine_memory_t;
/** Compute the bytes that a rank at `place` would hold: make an engine as in a run, but only count its
 *  tensors. `model` is only asked for sizes, and may be on a device. If an engine already trains that model,
 *  `options` must be that engine's. delta_bits is the expected size of a lossless delta, in bits per weight.
 *  Not collective. TW_ERR_NO_MEMORY, TW_ERR_CONFIG, TW_ERR_INVALID (logged). */
tw_status_t tw_engine_memory_of(const tw_train_options_t *options, tw_model_t *model,
                                const tw_hpz_place_t *place, double delta_bits, tw_engine_memory_t *out);

/** Return the peak so far of bytes allocated by the engine, its hpZ, its communicator and the model. */
size_t tw_engine_memory_bytes(const tw_engine_t *engine);
/** Return the process's resident bytes when the engine was made (before), and the peak's excess over them. */
size_t tw_engine_resident_before(const tw_engine_t *engine);
size_t tw_engine_resident_bytes(const tw_engine_t *engine);
/** Return the largest tw_engine_resident_bytes of all ranks at the last exchange of a step or validation. */
size_t tw_engine_resident_most(const tw_engine_t *engine);
/** Return the bytes on the device, which thinwire.device_mem limits. */
size_t tw_engine_device_bytes(const tw_engine_t *engine);
/** Return the bytes in files: of everything offloaded to "nvme", and of layers' inputs. */
uint64_t tw_engine_file_bytes(const tw_engine_t *engine);

/** Bytes sent and time waited so far, of one rank or all. */
typedef struct tw_engine_totals {
    uint64_t inter_node_bytes, in_node_bytes;
    /** Upper bound of inter_node_bytes, known before sending. When nothing is in flight, it equals
     *  inter_node_bytes + spared_inter_node_bytes. */
    uint64_t planned_inter_node_bytes;
    /** Bytes by which lossless messages were shorter than their upper bounds. */
    uint64_t spared_inter_node_bytes;
    uint64_t delta_bytes, delta_elems; /**< bytes of the deltas of weights; weights in them */
    double wait_sec;                   /**< time that the compute thread was blocked in communication */
} tw_engine_totals_t;

/** Work that is counted apart from training. */
typedef enum tw_engine_aside {
    TW_ENGINE_LOAD,       /**< loading the first weights, or a checkpoint's */
    TW_ENGINE_VALIDATION, /**< tw_engine_validate */
    TW_ENGINE_UPKEEP,     /**< tw_engine_sync, tw_engine_check */
    TW_ENGINE_SAMPLING,   /**< tw_engine_sample */
    TW_ENGINE_ASIDE_COUNT
} tw_engine_aside_t;

/** Return this rank's totals of training, or of one kind of work apart from it. */
tw_engine_totals_t tw_engine_training_totals(const tw_engine_t *engine);
tw_engine_totals_t tw_engine_aside_totals(const tw_engine_t *engine, tw_engine_aside_t what);
/** Return the bytes that a rank sends to each other rank in the exchange at the end of a step. */
size_t tw_engine_report_bytes(void);
/** Wait until nothing is in flight, so that the totals are complete. */
tw_status_t tw_engine_drain(tw_engine_t *engine);

/* ---- what options mean for a step ---------------------------------------------------------------------- */

/** Return the unit of visit `visit` of a micro-batch, in the order root, 1 .. n_layer, root, n_layer .. 1. */
size_t tw_engine_visited(size_t n_layer, size_t visit);
/** Return how many gathered blocks stage 3 holds at a time: one in use, and as many gathered ahead as the
 *  limits in the options allow. */
size_t tw_engine_block_slots(const tw_train_options_t *options, const tw_model_t *model);
/** Buffers that blocks' gradients are sent from in stages 2 and 3: one is filled while the other is sent. */
#define TW_ENGINE_REDUCE_SLOTS 2
/** Return 1 if a tensor is a matrix that Muon updates. */
int tw_engine_is_muons(const tw_train_options_t *options, const tw_model_tensor_t *tensor, int is_frozen);
/** Return 1 if model.gather=fp8 rounds the tensor: a matrix of a block, not an embedding or the head. */
int tw_engine_is_fp8(const tw_train_options_t *options, const tw_model_tensor_t *tensor);
/** Most units that Muon has under way at a time: momenta on the way to their owners (the ranks that make them
 *  orthogonal), momenta at the owners, and results on the way back. */
#define TW_ENGINE_MUON_PLACES 3
/** Return 1 if the next segment, of n_elems, begins a new operation. An operation takes consecutive segments
 *  of at most `bucket` elements in all, or one larger segment. *held is the number of elements in the
 *  open operation; the caller starts it at TW_ENGINE_NO_BUCKET (none open), and this call updates it. */
#define TW_ENGINE_NO_BUCKET SIZE_MAX
int tw_engine_begins_bucket(size_t *held, size_t n_elems, int64_t bucket);
/** In stages 2 and 3 the gradients of a unit larger than a bucket are reduced in slices. Return the arguments
 *  `most` (elements of a slice per rank) and `step` of tw_hpz_slice_next. */
size_t tw_engine_reduce_slice_most(const tw_train_options_t *options, int world);
size_t tw_engine_reduce_slice_step(const tw_train_options_t *options);
TW_C_END
