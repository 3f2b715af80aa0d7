/** trainer/engine: the ZeRO stages. It knows a model by its units and tensors only, and the network by
 *  communicators and hpZ.
 *
 *  Every unit's tensors are cut evenly over the ranks: what belongs to a rank is its shard. Stage 0 holds
 *  everything and reduces all of a gradient on all ranks; 1 holds the optimizer's shard only; 2 the
 *  gradients' too; 3 the weights' too, and gathers a unit when it is needed. Sums over ranks are of bf16
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
    /** This rank's notices, bits that all ranks hear of: asked for once a step, when the gradients are
     *  there. */
    uint32_t (*notices)(void *ctx);
    /** Masters and moments are about to change, on all ranks: it may be collective, by what notices said. */
    tw_status_t (*before_update)(void *ctx);
    void *ctx;
} tw_engine_hooks_t;

/** What the ranks' notices of the last step were: the same on all ranks. */
typedef struct tw_engine_notices {
    uint32_t any, all, first; /**< bits of at least one rank, of every rank, of rank 0 */
} tw_engine_notices_t;

/** All of it borrowed for the engine's life. */
typedef struct tw_engine_params {
    const tw_train_options_t *options; /**< resolved */
    tw_model_t *model;                 /**< reserved for its micro-batches by the engine */
    const tw_data_t *data;
    tw_coll_t *coll; /**< deterministic, with a progress thread */
    tw_engine_hooks_t hooks;
} tw_engine_params_t;

/** Takes the memory; initial weights by the seed. Collective. TW_ERR_NO_MEMORY, TW_ERR_CONFIG (logged; also
 *  where this rank needs more than thinwire.device_mem), or the communicator's errors. */
tw_status_t tw_engine_create(const tw_engine_params_t *params, tw_engine_t **out);
void tw_engine_destroy(tw_engine_t *engine);

/** A run of the optimizer's state that lies on this rank: elements first .. first + n_elems - 1 of a tensor.
 *  Stage 0: whole tensors. */
typedef struct tw_engine_piece {
    size_t tensor, first, n_elems;
    float *master, *m, *v; /**< m, v NULL: of a frozen tensor, which has none */
} tw_engine_piece_t;
/** Borrowed. To load a checkpoint: write into the pieces, all of them, then tw_engine_loaded and
 *  tw_engine_bring_state. Where the optimizer is on a device they hold its state from tw_engine_sync (in
 *  stage 0 on rank 0 alone), or tw_engine_bring_state, to the next step. */
const tw_engine_piece_t *tw_engine_pieces(const tw_engine_t *engine, size_t *n_pieces);
/** The masters have been written from outside: make the weights again from them, on all ranks, exactly, at a
 *  step (the number of steps done). recent_loss: as tw_engine_recent_loss said then; 0: not known.
 *  Collective. */
tw_status_t tw_engine_loaded(tw_engine_t *engine, uint64_t step, double recent_loss);
/** Then copy the optimizer's state to its device, if it is on one. Not collective. TW_ERR_CUDA. */
tw_status_t tw_engine_bring_state(tw_engine_t *engine);
/** What a checkpoint keeps to tell bad steps, and to know which data come next. */
typedef struct tw_engine_past {
    uint64_t passed_over;  /**< batches that rollbacks have skipped: the next step's batch is as many later */
    const double *history; /**< [n_history]: losses of the last steps, the oldest first; then their norms */
    size_t n_history;      /**< an even number */
} tw_engine_past_t;
/** Returns what a checkpoint keeps of the past; borrowed until the next step. */
tw_engine_past_t tw_engine_past_get(tw_engine_t *engine);
/** To be called with tw_engine_loaded. Of a longer history the last thinwire.z_window steps are kept. */
void tw_engine_past_set(tw_engine_t *engine, const tw_engine_past_t *past);
/** Set how many batches rollbacks have skipped in total. */
void tw_engine_pass_over(tw_engine_t *engine, uint64_t batches);
/** The moving mean of the losses that thinwire.loss_jump compares with; 0: none yet. */
double tw_engine_recent_loss(const tw_engine_t *engine);
uint64_t tw_engine_steps_done(const tw_engine_t *engine);
tw_engine_notices_t tw_engine_heard(const tw_engine_t *engine);

/** Train on the next batch. Collective. TW_ERR_MISMATCH: an alarm (logged with rank and tensor): zero or
 *  non-finite gradient norm, loss jump, replicas that differ. A bad step that thinwire.bad_step does not stop
 *  at is said by rank 0 and by out->is_bad: nothing has been updated. It counts as a step; with "rollback"
 *  the caller then loads a checkpoint. */
tw_status_t tw_engine_step(tw_engine_t *engine, tw_trainer_step_t *out);
/** Mean loss over the validation split's first thinwire.val_sequences sequences, the same ones on any number
 *  of ranks, or over all it has; NaN if there is none. Of the same weights it is the same but for fp32's last
 *  bits, where micro-batches are of another size. Collective. */
tw_status_t tw_engine_validate(tw_engine_t *engine, double *loss);
/** Lines of text that the model goes on with. */
typedef struct tw_engine_lines {
    const int32_t *prompt; /**< [n_prompt], at least 1: what all lines begin with; rank 0's */
    size_t n_prompt;
    int32_t *tokens; /**< [thinwire.sample_lines][thinwire.sample_tokens]: what follows it; rank 0's */
} tw_engine_lines_t;

/** Sample from the weights as they are, by options' sample_ keys; drawn from seed, step, line and place
 *  alone. All ranks take part in gathering the weights, once; then rank 0 computes alone, a forward pass for
 *  each token, and the others wait for it, however long it takes. In stage 3 it holds the whole model
 *  meanwhile, as it is stored. Collective. Other ranks' `sample` is not looked at. TW_ERR_INVALID: a token
 *  of the prompt outside the vocabulary; TW_ERR_NO_MEMORY. */
tw_status_t tw_engine_sample(tw_engine_t *engine, const tw_engine_lines_t *sample);
/** Tokens that a line is continued from at most: the prompt's end and what has been sampled, or
 *  thinwire.sequence_length. */
size_t tw_engine_sample_length(const tw_train_options_t *options);
/** What sampling takes of rank 0 besides whole weights: activations and scratch. */
size_t tw_engine_sample_bytes(const tw_train_options_t *options, const tw_model_t *model);

/** Make ready for a checkpoint: a full sync, if deltas lose something, and the state of an optimizer on a
 *  device in host memory. Collective; nothing to do in other modes. */
tw_status_t tw_engine_sync(tw_engine_t *engine);
/** Do all copies of weights hold the same? Of stages 0 to 2 those of all ranks, of hpZ its replicas; the log
 *  names rank and tensor where not. Collective. */
tw_status_t tw_engine_check(tw_engine_t *engine, int *equal);
/** Does TW_HPZ_CHECK_STEPS ask for that now? */
int tw_engine_check_due(const tw_engine_t *engine);
/** Returns, with a lag_bound, the largest lag of the last deltas, and how many blocks lagged more so far. */
double tw_engine_lag(const tw_engine_t *engine, uint64_t *n_blocks);

/** What memory is for. The first three can be offloaded: kept in host memory, or in files. */
typedef enum tw_engine_holding {
    TW_ENGINE_OPTIMIZER, /**< moments, and master weights where they are not the weights themselves */
    TW_ENGINE_WEIGHTS,   /**< shards, replicas with their states, and whole weights where they stay */
    TW_ENGINE_INPUTS,    /**< of layers, where they are all that is kept for backward */
    TW_ENGINE_GRADIENTS,
    TW_ENGINE_MOVING,      /**< room for weights and gradients on their way */
    TW_ENGINE_ACTIVATIONS, /**< all other activations */
    TW_ENGINE_SCRATCH, /**< what the model computes in, and the optimizer; what sampling takes of rank 0 */
    TW_ENGINE_HOLDING_COUNT
} tw_engine_holding_t;

/** What a rank will hold, in bytes: in host memory, in files, and on a GPU, if it has one. */
typedef struct tw_engine_memory {
    size_t host[TW_ENGINE_HOLDING_COUNT], files[TW_ENGINE_HOLDING_COUNT], gpu[TW_ENGINE_HOLDING_COUNT];
    /** in addition, with a delta: host memory of the first full sync; of each later sync */
    size_t first_sync, sync;
} tw_engine_memory_t;
/** What a rank at `place` would hold. An engine is made as a run makes it, but its tensors are only counted,
 *  and never touched. model: on a device or not; only its sizes are asked. One that an engine trains already
 *  may only be given with that engine's options. delta_bits: of a lossless delta, per weight. Not
 *  collective. TW_ERR_NO_MEMORY, TW_ERR_CONFIG, TW_ERR_INVALID (logged). */
tw_status_t tw_engine_memory_of(const tw_train_options_t *options, tw_model_t *model,
                                const tw_hpz_place_t *place, double delta_bits, tw_engine_memory_t *out);

/** Bytes of memory that the engine, its hpZ, its communicator and the model's scratch hold, at most so
 *  far. */
size_t tw_engine_memory_bytes(const tw_engine_t *engine);
/** What this process held when the engine was made, and the most it has held so far beyond that, as the
 *  system counts it. */
size_t tw_engine_resident_before(const tw_engine_t *engine);
size_t tw_engine_resident_bytes(const tw_engine_t *engine);
/** tw_engine_resident_bytes of the rank that has the most, as of the last step's or validation's exchange. */
size_t tw_engine_resident_most(const tw_engine_t *engine);
/** Returns the bytes that thinwire.device_mem bounds. */
size_t tw_engine_device_bytes(const tw_engine_t *engine);
/** Bytes that lie in files: of what is offloaded to "nvme", and layers' inputs. */
uint64_t tw_engine_file_bytes(const tw_engine_t *engine);

/** What one or all ranks have sent and waited for so far. */
typedef struct tw_engine_totals {
    uint64_t inter_node_bytes, in_node_bytes;
    /** the most that operations may send; when nothing is in flight, bytes sent plus bytes spared */
    uint64_t planned_inter_node_bytes;
    /** how much shorter lossless messages were than they may be */
    uint64_t spared_inter_node_bytes;
    uint64_t delta_bytes, delta_elems; /**< of weights' changes */
    double wait_sec;                   /**< the compute thread blocked in communication */
} tw_engine_totals_t;

/** What is not training. */
typedef enum tw_engine_aside {
    TW_ENGINE_LOAD,       /**< the first weights, or a checkpoint's */
    TW_ENGINE_VALIDATION, /**< tw_engine_validate */
    TW_ENGINE_UPKEEP,     /**< tw_engine_sync, tw_engine_check */
    TW_ENGINE_SAMPLING,   /**< tw_engine_sample */
    TW_ENGINE_ASIDE_COUNT
} tw_engine_aside_t;

/** Of this rank: training, or what is beside it. */
tw_engine_totals_t tw_engine_training_totals(const tw_engine_t *engine);
tw_engine_totals_t tw_engine_aside_totals(const tw_engine_t *engine, tw_engine_aside_t what);
/** What a rank tells every other one at the end of a step. */
size_t tw_engine_report_bytes(void);
/** Wait until nothing is in flight: then the totals are complete. */
tw_status_t tw_engine_drain(tw_engine_t *engine);

/* ---- what options mean for a step ---------------------------------------------------------------------- */

/** The unit that a micro-batch's visit goes to: root, 1 ... n_layer, root, n_layer ... 1. */
size_t tw_engine_visited(size_t n_layer, size_t visit);
/** Layers that stage 3 holds at a time: one in use, and those ahead of it that the limits allow. */
size_t tw_engine_block_slots(const tw_train_options_t *options, const tw_model_t *model);
/** Slots that blocks' gradients travel from, from stage 2 on: one is filled while one travels. */
#define TW_ENGINE_REDUCE_SLOTS 2
/** Is a tensor a matrix that Muon updates? Those of a model belong to the ranks in turn. */
int tw_engine_is_muons(const tw_train_options_t *options, const tw_model_tensor_t *tensor, int is_frozen);
/** Units whose momenta are under way: on the way to their owners, there, and on the way back. */
#define TW_ENGINE_MUON_PLACES 3
/** Segments go in order. An operation takes several, of a bucket's elements at most, or one that is larger.
 *  Does the next segment, of n_elems, begin a new operation? *held, in: elements of the open operation, or
 *  TW_ENGINE_NO_BUCKET; out: with this segment. */
#define TW_ENGINE_NO_BUCKET SIZE_MAX
int tw_engine_begins_bucket(size_t *held, size_t n_elems, int64_t bucket);
/** From stage 2 on gradients of a unit larger than a bucket are reduced in slices (tw_hpz_slice_next): the
 *  most elements of a slice at a rank, and the slices' step. */
size_t tw_engine_reduce_slice_most(const tw_train_options_t *options, int world);
size_t tw_engine_reduce_slice_step(const tw_train_options_t *options);
TW_C_END
