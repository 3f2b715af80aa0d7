/** trainer/engine: the ZeRO stages. It knows a model by its units and tensors only, and the network by
 *  communicators and hpZ.
 *
 *  Every unit's tensors are divided evenly over the ranks; a rank's part is its shard. Stage 0 holds
 *  everything, and reduces whole gradients on all ranks; stage 1 holds only a shard of the optimizer's state;
 *  2 also of gradients; 3 also of weights, and gathers a unit when it is needed. Sums over ranks are of bf16
 *  gradients, or of fp32 ones, in an order that does not depend on the stage, and the norm is an exact
 *  integer: in modes that lose nothing all stages give the same losses bit for bit.
 *
 *  Threads: an engine belongs to one thread, which computes with those of the model's pool; the
 *  communicator's progress thread moves gathers and reductions meanwhile. */
#pragma once

#include "collectives/collectives.h"
#include "hpz/hpz.h"
#include "trainer/config/config.h"
#include "trainer/data/data.h"
#include "trainer/model/model.h"
#include "trainer/trainer.h"

TW_C_BEGIN

typedef struct tw_engine tw_engine_t;

/** Functions that a step calls; NULL: none. */
typedef struct tw_engine_hooks {
    /** Returns this rank's notices, bits that all ranks get; called once a step, after reducing gradients. */
    uint32_t (*notices)(void *ctx);
    /** Called on all ranks before masters and moments change; may be collective, depending on notices. */
    tw_status_t (*before_update)(void *ctx);
    void *ctx;
} tw_engine_hooks_t;

/** The ranks' notices of the last step; the same on all ranks. */
typedef struct tw_engine_notices {
    uint32_t any, all, first; /**< bits that at least one rank set, that every rank set, that rank 0 set */
} tw_engine_notices_t;

/** All pointers are borrowed for the engine's life. */
typedef struct tw_engine_params {
    const tw_train_options_t *options; /**< resolved */
    tw_model_t *model;                 /**< the engine calls tw_model_reserve for its micro-batches */
    const tw_data_t *data;
    tw_coll_t *coll; /**< deterministic, with a progress thread */
    tw_engine_hooks_t hooks;
} tw_engine_params_t;

/** Make an engine, with initial weights drawn from the seed. Collective. TW_ERR_NO_MEMORY, TW_ERR_CONFIG
 *  (logged; also if this rank needs more than thinwire.device_mem), or the communicator's errors. */
tw_status_t tw_engine_create(const tw_engine_params_t *params, tw_engine_t **out);
void tw_engine_destroy(tw_engine_t *engine);

/** A run of the optimizer's state that lies on this rank: elements first .. first + n_elems - 1 of a tensor.
 *  In stage 0 pieces are whole tensors. */
typedef struct tw_engine_piece {
    size_t tensor, first, n_elems;
    float *master, *m, *v; /**< m and v are NULL for a frozen tensor */
} tw_engine_piece_t;
/** Return this rank's pieces; borrowed. To load a checkpoint, write into all pieces, then call
 *  tw_engine_loaded and tw_engine_bring_state. With the optimizer on a device, they hold its state only from
 *  tw_engine_sync (in stage 0 on rank 0 alone) or tw_engine_bring_state to the next step. */
const tw_engine_piece_t *tw_engine_pieces(const tw_engine_t *engine, size_t *n_pieces);
/** Make the weights on all ranks from the masters, which the caller has written, exactly, at a step (the
 *  number of steps done). recent_loss is what tw_engine_recent_loss returned at that step; 0: not known.
 *  Collective. */
tw_status_t tw_engine_loaded(tw_engine_t *engine, uint64_t step, double recent_loss);
/** Copy the optimizer's state to its device, if it is on one, after tw_engine_loaded. Not collective.
 *  TW_ERR_CUDA. */
tw_status_t tw_engine_bring_state(tw_engine_t *engine);
/** What a checkpoint keeps to recognize bad steps, and to know which data come next. */
typedef struct tw_engine_past {
    uint64_t passed_over;  /**< batches that rollbacks have skipped: the next step's batch is as many later */
    const double *history; /**< [n_history]: losses of the last steps, the oldest first; then their norms */
    size_t n_history;      /**< an even number */
} tw_engine_past_t;
/** Return what a checkpoint keeps of the past; borrowed until the next step. */
tw_engine_past_t tw_engine_past_get(tw_engine_t *engine);
/** Set the past, with tw_engine_loaded. The last thinwire.z_window steps of it are kept. */
void tw_engine_past_set(tw_engine_t *engine, const tw_engine_past_t *past);
/** Set how many batches rollbacks have skipped in total. */
void tw_engine_pass_over(tw_engine_t *engine, uint64_t batches);
/** Return the moving mean of losses, which thinwire.loss_jump compares with; 0: none yet. */
double tw_engine_recent_loss(const tw_engine_t *engine);
uint64_t tw_engine_steps_done(const tw_engine_t *engine);
tw_engine_notices_t tw_engine_heard(const tw_engine_t *engine);

/** Train on the next batch. Collective. TW_ERR_MISMATCH: an alarm (logged with rank and tensor): zero or
 *  non-finite gradient norm, loss jump, replicas that differ. If thinwire.bad_step does not stop at a bad
 *  step, rank 0 logs it and out->is_bad is 1: nothing has been updated, but it counts as a step. With
 *  "rollback" the caller then loads a checkpoint. */
tw_status_t tw_engine_step(tw_engine_t *engine, tw_trainer_step_t *out);
/** Compute the mean loss over the first thinwire.val_sequences sequences of the validation split, or over all
 *  it has; NaN if there is none. The sequences are the same on any number of ranks, and so is the loss,
 *  except for fp32's last bits if the size of micro-batches differs. Collective. */
tw_status_t tw_engine_validate(tw_engine_t *engine, double *loss);
/** Lines of text that the model continues. */
typedef struct tw_engine_lines {
    const int32_t *prompt; /**< [n_prompt], at least 1: what all lines begin with; on rank 0 alone */
    size_t n_prompt;
    int32_t *tokens; /**< [thinwire.sample_lines][thinwire.sample_tokens]: what follows it; on rank 0 alone */
} tw_engine_lines_t;

/** Sample from the current weights, as the sample_ options say; draws depend on seed, step, line and place
 *  alone. All ranks gather the weights once; then rank 0 computes alone, a forward pass for each token, and
 *  the others wait, however long it takes. In stage 3 rank 0 holds the whole model meanwhile, as it is
 *  stored. Collective; `sample` is ignored on other ranks. TW_ERR_INVALID: a token of the prompt outside the
 *  vocabulary; TW_ERR_NO_MEMORY. */
tw_status_t tw_engine_sample(tw_engine_t *engine, const tw_engine_lines_t *sample);
/** Return the bytes that sampling takes on rank 0 besides whole weights: activations and scratch. */
size_t tw_engine_sample_bytes(const tw_train_options_t *options, const tw_model_t *model);

/** Prepare for a checkpoint: do a full sync, if deltas lose something; copy the optimizer's state to host
 *  memory, if it is on a device. Collective. */
tw_status_t tw_engine_sync(tw_engine_t *engine);
/** Check that all copies of weights are equal: in stages 0 to 2 those of all ranks, with hpZ its replicas.
 *  The log names rank and tensor if not. Collective. */
tw_status_t tw_engine_check(tw_engine_t *engine, int *equal);
/** Return 1 if TW_HPZ_CHECK_STEPS asks for tw_engine_check now. */
int tw_engine_check_due(const tw_engine_t *engine);
/** Return the largest lag of the last deltas; *n_blocks have lagged beyond thinwire.lag_bound so far. */
double tw_engine_lag(const tw_engine_t *engine, uint64_t *n_blocks);

/** What memory is used for. The first three can be offloaded: kept in host memory, or in files. */
typedef enum tw_engine_holding {
    TW_ENGINE_OPTIMIZER, /**< moments, and master weights if they are not the weights themselves */
    TW_ENGINE_WEIGHTS,   /**< shards, replicas with their states, and whole weights that are kept */
    TW_ENGINE_INPUTS,    /**< inputs of layers, if they are all that is kept for backward */
    TW_ENGINE_GRADIENTS,
    TW_ENGINE_MOVING,      /**< buffers that weights and gradients are sent from and received in */
    TW_ENGINE_ACTIVATIONS, /**< all other activations */
    TW_ENGINE_SCRATCH,     /**< scratch of the model and the optimizer; what sampling takes on rank 0 */
    TW_ENGINE_HOLDING_COUNT
} tw_engine_holding_t;

/** What a rank will hold, in bytes: in host memory, in files, and on a GPU, if it has one. */
typedef struct tw_engine_memory {
    size_t host[TW_ENGINE_HOLDING_COUNT], files[TW_ENGINE_HOLDING_COUNT], gpu[TW_ENGINE_HOLDING_COUNT];
    /** in addition, with a delta: host memory of the first, full sync; of each later sync */
    size_t first_sync, sync;
} tw_engine_memory_t;
/** Compute what a rank at `place` would hold: an engine is made as in a run, but its tensors are only
 *  counted, never touched. `model` may be on a device; only its sizes are asked. If an engine trains it
 *  already, `options` must be that engine's. delta_bits is the size of a lossless delta, per weight. Not
 *  collective. TW_ERR_NO_MEMORY, TW_ERR_CONFIG, TW_ERR_INVALID (logged). */
tw_status_t tw_engine_memory_of(const tw_train_options_t *options, tw_model_t *model,
                                const tw_hpz_place_t *place, double delta_bits, tw_engine_memory_t *out);

/** Return the most bytes so far that the engine, its hpZ, its communicator and the model's scratch held. */
size_t tw_engine_memory_bytes(const tw_engine_t *engine);
/** Return what this process held when the engine was made, and the most that it has held beyond that, as the
 *  system counts it. */
size_t tw_engine_resident_before(const tw_engine_t *engine);
size_t tw_engine_resident_bytes(const tw_engine_t *engine);
/** Return the largest tw_engine_resident_bytes of any rank, at the last exchange of a step or validation. */
size_t tw_engine_resident_most(const tw_engine_t *engine);
/** Return the bytes that thinwire.device_mem bounds. */
size_t tw_engine_device_bytes(const tw_engine_t *engine);
/** Return the bytes in files: those of what is offloaded to "nvme", and of layers' inputs. */
uint64_t tw_engine_file_bytes(const tw_engine_t *engine);

/** What one or all ranks have sent and waited for so far. */
typedef struct tw_engine_totals {
    uint64_t inter_node_bytes, in_node_bytes;
    /** Upper bound of what operations send; when nothing is in flight, it is bytes sent plus bytes spared. */
    uint64_t planned_inter_node_bytes;
    /** By how much lossless messages were shorter than their bound. */
    uint64_t spared_inter_node_bytes;
    uint64_t delta_bytes, delta_elems; /**< size of the weights' changes */
    double wait_sec;                   /**< time that the compute thread was blocked in communication */
} tw_engine_totals_t;

/** What is counted apart from training. */
typedef enum tw_engine_aside {
    TW_ENGINE_LOAD,       /**< loading the first weights, or a checkpoint's */
    TW_ENGINE_VALIDATION, /**< tw_engine_validate */
    TW_ENGINE_UPKEEP,     /**< tw_engine_sync, tw_engine_check */
    TW_ENGINE_SAMPLING,   /**< tw_engine_sample */
    TW_ENGINE_ASIDE_COUNT
} tw_engine_aside_t;

/** Return this rank's totals: of training, or of something apart from it. */
tw_engine_totals_t tw_engine_training_totals(const tw_engine_t *engine);
tw_engine_totals_t tw_engine_aside_totals(const tw_engine_t *engine, tw_engine_aside_t what);
/** Return the bytes that a rank sends to every other one at the end of a step. */
size_t tw_engine_report_bytes(void);
/** Wait until nothing is in flight: then the totals are complete. */
tw_status_t tw_engine_drain(tw_engine_t *engine);

/* ---- what options mean for a step ---------------------------------------------------------------------- */

/** Return the unit of a micro-batch's visit, in the order root, 1 ... n_layer, root, n_layer ... 1. */
size_t tw_engine_visited(size_t n_layer, size_t visit);
/** Return how many layers stage 3 holds at a time: one in use, and as many ahead as the limits allow. */
size_t tw_engine_block_slots(const tw_train_options_t *options, const tw_model_t *model);
/** Slots that blocks' gradients are sent from, from stage 2 on: one is filled while the other is sent. */
#define TW_ENGINE_REDUCE_SLOTS 2
/** Return 1 if a tensor is a matrix that Muon updates. These matrices are assigned to the ranks in turn. */
int tw_engine_is_muons(const tw_train_options_t *options, const tw_model_tensor_t *tensor, int is_frozen);
/** Return 1 if model.gather=fp8 rounds the tensor: a matrix of a layer, no embedding and not the head. */
int tw_engine_is_fp8(const tw_train_options_t *options, const tw_model_tensor_t *tensor);
/** Most units whose momenta are under way: on the way to their owners, there, and on the way back. */
#define TW_ENGINE_MUON_PLACES 3
/** Return 1 if the next segment, of n_elems, begins a new operation. An operation takes consecutive segments,
 *  at most a bucket's elements, or one segment that is larger. *held is the elements of the open operation,
 *  or TW_ENGINE_NO_BUCKET, and becomes that with this segment. */
#define TW_ENGINE_NO_BUCKET SIZE_MAX
int tw_engine_begins_bucket(size_t *held, size_t n_elems, int64_t bucket);
/** Return the most elements of a slice at a rank, and the slices' step: from stage 2 on, gradients of a unit
 *  larger than a bucket are reduced in slices (tw_hpz_slice_next). */
size_t tw_engine_reduce_slice_most(const tw_train_options_t *options, int world);
size_t tw_engine_reduce_slice_step(const tw_train_options_t *options);
TW_C_END
