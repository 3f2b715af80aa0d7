/** Functions that the engine's files offer each other. Private to engine.
 *
 *  create.c     makes and destroys an engine               memory.c    its memory, counted
 *  partition.c  what of a unit is on this rank             walk.c      units gathered ahead of need
 *  reduce.c     gradients reduced behind backward          norm.c      their norm
 *  operation.c  posting, waiting, planned bytes            exchange.c  what ranks tell each other of a step
 *  update.c     AdamW, and the weights after it            sync.c      replicas that follow the masters
 *  step.c       a training step                            validate.c  a validation; are replicas equal?
 *  totals.c     what has been sent, planned, waited for    alarm.c     when to stop
 *  device.c     where memory lies, and what fits           inputs.c    layers' inputs, kept until backward
 *  groups.c     tensors that are trained otherwise         sample.c    text, sampled
 *  processor.c  processor time                             outliers.c  losses and norms out of the common
 *  resident.c   what the process holds                     muon.c      matrices made orthogonal
 *  threads.c    what is computed by elements               planned.c   an engine's memory, without making it
 *  choices.c    what options mean for a step               near.c      the optimizer on a model's device
 *  loss.c       what lossy codes lose                      fp8.c       matrices rounded to e4m3 */
#pragma once

#include "trainer/engine/state.h"

TW_C_BEGIN

/* ---- create.c */
/** Allocate the memory of an engine whose params, rank and world are set. Collective, unless it is
 *  planned. */
tw_status_t tw_engine_take(tw_engine_t *engine);
void tw_engine_describe(tw_engine_t *engine, const tw_engine_params_t *params);
/** Free what was allocated; nothing may be in flight. */
void tw_engine_cleanup(tw_engine_t *engine);

/* ---- memory.c: zeroed, counted; freed with the engine. */
/** Allocate memory, or map a nameless file, as the holding's home says. NULL: failed (logged with folder). */
void *tw_engine_alloc(tw_engine_t *engine, tw_engine_holding_t holding, size_t n, size_t elem_bytes,
                      const char *what);
/** Allocate memory where the model computes, for what only its calls read and write. */
void *tw_engine_alloc_near(tw_engine_t *engine, tw_engine_holding_t holding, size_t n_bytes,
                           const char *what);
/** Pin memory that the model, or an optimizer beside it, will often copy from or to. */
void tw_engine_pin(tw_engine_t *engine, void *start, size_t n_bytes);
/** Advise that a run of memory will be needed soon (fetch), or is not needed for now (put_away). They do
 *  nothing if it is not in a file. */
void tw_engine_fetch(const tw_engine_t *engine, const void *start, size_t n_bytes);
void tw_engine_put_away(const tw_engine_t *engine, const void *start, size_t n_bytes);
/** Give freed memory back to the system. */
void tw_engine_trim(void);
/** Measure how much is held now, and keep the peak. Most is held while changes of weights are under way. */
void tw_engine_note_memory(tw_engine_t *engine);
void tw_engine_free_all(tw_engine_t *engine);

/* ---- device.c */
void tw_engine_find_homes(tw_engine_t *engine);
/** Return 1 if more is held already than thinwire.device_mem allows. */
int tw_engine_is_full(const tw_engine_t *engine);
/** Check that the engine fits in thinwire.device_mem. TW_ERR_CONFIG (logged with every holding) if not. */
tw_status_t tw_engine_check_device(const tw_engine_t *engine);
/** Return 1 if a block's gradient arrives only after the next block's is computed. */
int tw_engine_gradients_lag(const tw_engine_t *engine);

/* ---- near.c */
/** This and the next three do nothing if the optimizer's state is not on the device. */
tw_status_t tw_near_init(tw_engine_t *engine);
void tw_near_cleanup(tw_engine_t *engine);
/** Copy masters and moments from the host to the device (load), or back (store), if host memory lacks
 *  them. */
tw_status_t tw_near_load(tw_engine_t *engine);
tw_status_t tw_near_store(tw_engine_t *engine);
/** Add what tw_device_optimizer_norm has counted to *norm. */
tw_status_t tw_near_norm(tw_engine_t *engine, tw_norm_t *norm);
/** Begin the update: each unit's step is enqueued behind the one before, and its results are awaited one unit
 *  later. */
tw_status_t tw_near_begin(tw_engine_t *engine, float grad_scale);
tw_status_t tw_near_step(tw_engine_t *engine, size_t index, double lr);

/* ---- inputs.c */
tw_status_t tw_inputs_init(tw_engine_t *engine, size_t x_elems);
/** Return where a unit's output goes in the forward pass; for unit 0, the embedding's. It is valid until two
 *  more are asked for; the last unit's stays, until its gradient overwrites it. */
float *tw_inputs_output(const tw_engine_t *engine, size_t unit);
/** Keep a unit's output, which has been computed, for backward. */
void tw_inputs_keep(tw_engine_t *engine, size_t unit);
/** Return a layer's input in the backward pass; begin to read the input of the layer before it. */
const float *tw_inputs_get(tw_engine_t *engine, size_t unit);

/* ---- step.c */
/** Load the micro-batch's tokens and targets, and find where documents begin in them. */
tw_status_t tw_engine_batch(tw_engine_t *engine, tw_data_split_t split, const tw_data_place_t *place);
/** Compute the last layer's output; in training, keep what backward needs. */
tw_status_t tw_engine_forward(tw_engine_t *engine, int is_training);

/* ---- partition.c */
tw_status_t tw_engine_partition(tw_engine_t *engine);

/* ---- operation.c */
tw_status_t tw_engine_ops_init(tw_engine_t *engine, tw_engine_ops_t *ops, size_t max_requests);
/** Return the address of element i of gradients. */
static inline void *tw_engine_grad_at(const tw_engine_t *engine, void *grads, size_t i)
{
    return (char *)grads + i * tw_type_bytes(engine->grad_type);
}
/** Return the address of element i of weights. */
static inline void *tw_engine_weight_at(const tw_engine_t *engine, const void *weights, size_t i)
{
    return (char *)(uintptr_t)weights + i * tw_type_bytes(engine->weight_type);
}
/** Return the row length for the lossless codec; 0 if the tensor is no matrix. */
static inline size_t tw_engine_row_elems(const tw_model_tensor_t *tensor)
{
    return tensor->n_dims == 2 ? tensor->shape[1] : 0;
}

/** Set args to use the codec, unless it is plain. It is forced if quantized, or if lossless and there are
 *  other nodes: a deterministic communicator measures no link, assumes a fast one, and might not encode. */
void tw_engine_encode(const tw_engine_t *engine, const tw_quant_codec_t *codec, tw_coll_args_t *args);
/** Post args, in operations of at most `bucket` elements (or one larger segment), and add their inter-node
 *  bytes to planned_bytes. *planned holds these bytes if an equal post computed them before; if it is
 *  TW_ENGINE_NOT_PLANNED, they are computed and written to it. */
tw_status_t tw_engine_post(tw_engine_t *engine, tw_engine_ops_t *ops, const tw_coll_args_t *args,
                           int64_t bucket, uint64_t *planned);
/** Note a request that somebody else has posted. */
tw_status_t tw_engine_note(tw_engine_t *engine, tw_engine_ops_t *ops, tw_coll_request_t *request);
tw_status_t tw_engine_wait(tw_engine_t *engine, tw_engine_ops_t *ops);
/** Post and wait. */
tw_status_t tw_engine_run(tw_engine_t *engine, const tw_coll_args_t *args);

/* ---- walk.c */
void tw_walk_begin(tw_engine_t *engine, size_t n_micros, int forward_only);
/** Wait for the next visit's unit, and begin to gather those that follow it. Its weights are in
 *  engine->weight_ptrs. */
tw_status_t tw_walk_enter(tw_engine_t *engine);
void tw_walk_leave(tw_engine_t *engine);
/** Visit every unit once. Unless `whole` is NULL, it gets copies of all units, one after the other. */
tw_status_t tw_walk_all(tw_engine_t *engine, void *whole);
/** Point engine->weight_ptrs at the tensors of a whole unit. */
void tw_walk_point_at(tw_engine_t *engine, size_t unit, const void *whole);

/* ---- sync.c: nothing to do in any of them without delta */
/** Begin a sync: the masters of units 0, 1, ... will be updated, in this order. */
void tw_sync_start(tw_engine_t *engine, tw_hpz_sync_t kind);
/** Note that the next unit's masters have been updated. */
tw_status_t tw_sync_ready(tw_engine_t *engine);
/** Do what can be done without waiting. */
tw_status_t tw_sync_advance(tw_engine_t *engine);
/** Wait until a unit's replica is up to date. */
tw_status_t tw_sync_need(tw_engine_t *engine, size_t unit);
/** Return the elements of a unit's replica on this rank. */
size_t tw_sync_replica_elems(const tw_engine_t *engine, size_t unit);

/* ---- reduce.c */
/** Point engine->grad_ptrs at where backward adds a unit's gradients; zero these in the step's first
 *  micro-batch. */
void tw_reduce_begin(tw_engine_t *engine, size_t index, int is_first);
/** Post the reduction of a unit's gradients, which are complete. */
tw_status_t tw_reduce_post(tw_engine_t *engine, size_t index);
/** Wait for all reductions, and add this rank's shards to the norm, unless it is NULL. The blocks' are added
 *  while the root's are still on their way. */
tw_status_t tw_reduce_finish(tw_engine_t *engine, tw_norm_t *norm);
/** Return the most elements of a unit that are reduced at a time; larger units go in slices. */
size_t tw_reduce_slice_elems(const tw_engine_t *engine);

/* ---- loss.c: nothing to do but in every 16th step, where a code loses something */
tw_status_t tw_loss_init(tw_engine_t *engine);
/** Add a sample of the gradients that an operation is about to send. */
void tw_loss_gradients(tw_engine_t *engine, const tw_coll_args_t *args);
/** Add a sample of the weights that all ranks gather. */
void tw_loss_weights(tw_engine_t *engine);
void tw_loss_merge(tw_engine_losses_t *sum, const tw_engine_losses_t *more);

/* ---- exchange.c */
/** What ranks exchange at the end of a step. In: this rank's figures; out: those of all ranks. loss and
 *  wait_sec are averaged in rank order, resident_bytes is the most of any rank, all else is added up. */
typedef struct tw_engine_report {
    tw_norm_t norm;
    double loss;
    tw_engine_totals_t totals;
    tw_engine_losses_t losses;
    uint64_t resident_bytes; /* set by the exchange: the most of any rank */
    tw_engine_notices_t notices;
} tw_engine_report_t;
tw_status_t tw_engine_exchange(tw_engine_t *engine, tw_engine_report_t *report);

/* ---- fp8.c: without model.gather=fp8 these do nothing */
tw_status_t tw_fp8_init(tw_engine_t *engine);
/** Find the new masters' exponents, and agree on them. Collective. */
tw_status_t tw_fp8_agree(tw_engine_t *engine);
/** Round the masters of a unit's fp8 tensors into its shard. */
void tw_fp8_round(const tw_engine_t *engine, size_t unit);

/* ---- groups.c */
tw_status_t tw_groups_init(tw_engine_t *engine);
/** Return the parameters of a tensor's coming step of AdamW; lr is that of the step, from tw_train_lr. */
tw_quant_adamw_t tw_groups_adamw(const tw_engine_t *engine, size_t tensor, double lr,
                                 const float *grad_scale);
/** Remove frozen tensors' segments from an operation, in place; return how many segments are left. */
size_t tw_groups_leave_out(const tw_engine_t *engine, tw_coll_args_t *args);
/** Allocate whole frozen tensors, if stage 3 keeps them. */
tw_status_t tw_frozen_init(tw_engine_t *engine);
/** Gather frozen tensors from all ranks, after the masters have been loaded. */
tw_status_t tw_frozen_gather(tw_engine_t *engine);
/** Point a unit's weights of frozen tensors at the kept ones. */
void tw_frozen_point_at(tw_engine_t *engine, size_t unit);
/** Copy a unit's kept tensors to its whole elements. */
void tw_frozen_copy(const tw_engine_t *engine, size_t unit, void *whole);

/* ---- muon.c */
tw_status_t tw_muon_init(tw_engine_t *engine);
/** Return 1 if a tensor is a matrix that Muon updates. */
int tw_muon_has(const tw_engine_t *engine, size_t tensor);
/** Update a unit's matrices, in three calls. send: momenta go to the matrices' owners. answer: each owner
 *  makes its matrices orthogonal and sends the pieces back. apply: masters are updated by them. Up to
 *  TW_ENGINE_MUON_PLACES consecutive units may be between these calls. lr is that of the step, from
 *  tw_train_lr. Collective; they do nothing without Muon. */
tw_status_t tw_muon_send(tw_engine_t *engine, size_t unit, float grad_scale);
tw_status_t tw_muon_answer(tw_engine_t *engine, size_t unit);
tw_status_t tw_muon_apply(tw_engine_t *engine, size_t unit, double lr);
/** Drop what is under way, after a failure. */
void tw_muon_give_up(tw_engine_t *engine);

/* ---- sample.c */
/** Count the device memory that sampling will take. */
void tw_sample_init(tw_engine_t *engine);

/* ---- update.c */
tw_status_t tw_update_init(tw_engine_t *engine);
void tw_update_cleanup(tw_engine_t *engine);
/** Take a step of the optimizer on the shards, and send the new weights to all ranks. */
tw_status_t tw_engine_update(tw_engine_t *engine, double lr, float grad_scale);
/** Make the weights on all ranks exactly those of the masters. */
tw_status_t tw_engine_refresh(tw_engine_t *engine);

/* ---- resident.c: see engine.h */
void tw_engine_resident_init(tw_engine_t *engine);

/* ---- processor.c */
tw_engine_processor_t tw_engine_processor_get(const tw_pool_t *pool);
tw_engine_processor_t tw_engine_processor_since(const tw_pool_t *pool, const tw_engine_processor_t *begin);

/* ---- threads.c */
tw_status_t tw_threads_init(tw_engine_t *engine);
/** Convert `from` to bf16, or copy it, as `type` says; to [n]. */
void tw_engine_convert(const tw_engine_t *engine, const float *from, tw_type_t type, void *to, size_t n);
void tw_engine_copy(const tw_engine_t *engine, const void *from, void *to, size_t n_bytes);
void tw_engine_clear(const tw_engine_t *engine, float *to, size_t n);
/** Add gradients to the norm, as tw_norm_add. */
void tw_engine_add_norm(const tw_engine_t *engine, tw_norm_t *norm, const void *grads, size_t n);

/* ---- totals.c */
/** Return all bytes and times so far, of training and all else. */
tw_engine_totals_t tw_engine_totals_get(const tw_engine_t *engine);
void tw_engine_totals_add(tw_engine_totals_t *sum, const tw_engine_totals_t *more);
tw_engine_totals_t tw_engine_totals_since(const tw_engine_totals_t *after, const tw_engine_totals_t *before);
/** End something that does not count as training, which began with these totals; nothing may be in flight
 *  then, nor now. */
void tw_engine_aside_end(tw_engine_t *engine, tw_engine_aside_t what, const tw_engine_totals_t *begin);

/* ---- alarm.c */
/** Judge a step. *is_bad is 1 if it is bad, and thinwire.bad_step does not stop there. */
tw_status_t tw_engine_alarm(tw_engine_t *engine, const tw_engine_report_t *report, double norm, int *is_bad);

/* ---- outliers.c */
tw_status_t tw_outliers_init(tw_engine_t *engine);
/** Return by how many standard deviations a loss or a norm is above the previous ones; 0: too few. */
typedef enum tw_engine_outlier { TW_ENGINE_LOSS, TW_ENGINE_NORM } tw_engine_outlier_t;
double tw_outliers_z(const tw_engine_t *engine, tw_engine_outlier_t of, double value);
void tw_outliers_add(tw_engine_t *engine, double loss, double norm);

TW_C_END
