/** Functions that the engine's files share. Private to engine. Each section is a file:
 *
 *  create.c     makes and destroys an engine               memory.c    its memory, counted
 *  partition.c  this rank's shard of each unit             walk.c      gathers units ahead of need
 *  reduce.c     reduces gradients during backward          norm.c      the gradients' norm
 *  operation.c  posting, waiting, planned bytes            exchange.c  the ranks' figures of a step
 *  update.c     AdamW; sends the new weights               sync.c      replicas that follow the masters
 *  step.c       a training step                            validate.c  validation; compares replicas
 *  totals.c     bytes sent and planned, time waited        alarm.c     bad steps, and when to stop
 *  device.c     where memory lies, and what fits           inputs.c    layers' inputs, kept until backward
 *  groups.c     frozen tensors, options of groups          sample.c    samples text
 *  processor.c  processor time                             outliers.c  unusual losses and norms
 *  resident.c   the process's resident memory              muon.c      the Muon optimizer
 *  threads.c    computes by elements with threads          planned.c   counts the memory of an engine
 *  choices.c    what options mean for a step               near.c      the optimizer on the model's device
 *  loss.c       errors of lossy codecs                     fp8.c       matrices rounded to e4m3 */
#pragma once

#include "trainer/engine/state.h"

TW_C_BEGIN

/* ---- create.c */
/** Allocate an engine's memory. Its params, rank and world must be set. Collective unless is_planned. */
tw_status_t tw_engine_take(tw_engine_t *engine);
/** Set the engine's fields that depend only on params. */
void tw_engine_describe(tw_engine_t *engine, const tw_engine_params_t *params);
/** Free the engine's memory. Nothing may be in flight. */
void tw_engine_cleanup(tw_engine_t *engine);

/* ---- memory.c: zeroed, counted; freed with the engine. */
/** Allocate memory or map an unnamed file, as homes[holding] says. NULL: failed, logged with `what`. */
void *tw_engine_alloc(tw_engine_t *engine, tw_engine_holding_t holding, size_t n, size_t elem_bytes,
                      const char *what);
/** Allocate memory where the model computes (on its device, if it has one). Only the model may access it. */
void *tw_engine_alloc_near(tw_engine_t *engine, tw_engine_holding_t holding, size_t n_bytes,
                           const char *what);
/** Pin (page-lock) host memory that the model or its device's optimizer often copies from or to. */
void tw_engine_pin(tw_engine_t *engine, void *start, size_t n_bytes);
/** Tell the system that a range of memory is needed soon (fetch), or not for now (put_away). Both do nothing
 *  for memory that is not a mapped file. */
void tw_engine_fetch(const tw_engine_t *engine, const void *start, size_t n_bytes);
void tw_engine_put_away(const tw_engine_t *engine, const void *start, size_t n_bytes);
/** Give freed memory back to the system. */
void tw_engine_trim(void);
/** Update the peak of allocated bytes. Called during syncs, when most memory is in use. */
void tw_engine_note_memory(tw_engine_t *engine);
void tw_engine_free_all(tw_engine_t *engine);

/* ---- device.c */
void tw_engine_find_homes(tw_engine_t *engine);
/** Return 1 if the device already holds more bytes than thinwire.device_mem allows. */
int tw_engine_is_full(const tw_engine_t *engine);
/** Check that the engine fits in thinwire.device_mem. If not, TW_ERR_CONFIG, logged with every holding. */
tw_status_t tw_engine_check_device(const tw_engine_t *engine);
/** Return 1 if a block's gradients reach host memory only after the next block's backward is enqueued. */
int tw_engine_gradients_lag(const tw_engine_t *engine);

/* ---- near.c */
/** init, cleanup, load and store do nothing if the optimizer's state is not on the device. */
tw_status_t tw_near_init(tw_engine_t *engine);
void tw_near_cleanup(tw_engine_t *engine);
/** Copy masters and moments to the device (load), or to the host if they are not up to date there (store). */
tw_status_t tw_near_load(tw_engine_t *engine);
tw_status_t tw_near_store(tw_engine_t *engine);
/** Add the squares that tw_device_optimizer_norm has summed on the device to *norm. */
tw_status_t tw_near_norm(tw_engine_t *engine, tw_norm_t *norm);
/** Begin the update of all units (begin), and enqueue one unit's (step). update.c waits for a unit's results
 *  after it has enqueued the next unit. */
tw_status_t tw_near_begin(tw_engine_t *engine, float grad_scale);
tw_status_t tw_near_step(tw_engine_t *engine, size_t index, double lr);

/* ---- inputs.c */
tw_status_t tw_inputs_init(tw_engine_t *engine, size_t x_elems);
/** Return the buffer for a unit's output in the forward pass (unit 0: the embedding's). Two buffers may take
 *  turns: unit + 2 then overwrites the output. The last unit's stays until its gradient overwrites it. */
float *tw_inputs_output(const tw_engine_t *engine, size_t unit);
/** Keep a unit's computed output for backward. */
void tw_inputs_keep(tw_engine_t *engine, size_t unit);
/** Return a block's input in the backward pass, and fetch the next lower block's input ahead of need. */
const float *tw_inputs_get(tw_engine_t *engine, size_t unit);

/* ---- step.c */
/** Load a micro-batch's tokens and targets, and find where documents begin in it. */
tw_status_t tw_engine_batch(tw_engine_t *engine, tw_data_split_t split, const tw_data_place_t *place);
/** Compute the last block's output. In training also save the activations that backward needs. */
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
/** Return a matrix's row length, which the lossless codec uses, or 0 for a vector. */
static inline size_t tw_engine_row_elems(const tw_model_tensor_t *tensor)
{
    return tensor->n_dims == 2 ? tensor->shape[1] : 0;
}

/** Set the codec in args, unless it is plain. A quantized codec is always forced. A lossless one is
 *  forced if there are several nodes: the communicator would otherwise decide by its cost model. As a
 *  deterministic communicator measures no link but assumes a fast one, it might not encode. */
void tw_engine_encode(const tw_engine_t *engine, const tw_quant_codec_t *codec, tw_coll_args_t *args);
/** Post args as operations of at most `bucket` elements (or one larger segment) each, and add their
 *  inter-node bytes to engine->planned_bytes. If *planned is TW_ENGINE_NOT_PLANNED, these bytes are computed
 *  and written to it. Otherwise *planned must hold them, from an earlier post of equal args. */
tw_status_t tw_engine_post(tw_engine_t *engine, tw_engine_ops_t *ops, const tw_coll_args_t *args,
                           int64_t bucket, uint64_t *planned);
/** Add a request that another module (hpZ) has posted to ops. */
tw_status_t tw_engine_note(tw_engine_t *engine, tw_engine_ops_t *ops, tw_coll_request_t *request);
tw_status_t tw_engine_wait(tw_engine_t *engine, tw_engine_ops_t *ops);
/** Post args as one operation and wait for it. */
tw_status_t tw_engine_run(tw_engine_t *engine, const tw_coll_args_t *args);

/* ---- walk.c */
void tw_walk_begin(tw_engine_t *engine, size_t n_micros, int forward_only);
/** Wait for the next visit's weights, point weight_ptrs at them, and begin to gather the units after it. */
tw_status_t tw_walk_enter(tw_engine_t *engine);
void tw_walk_leave(tw_engine_t *engine);
/** Visit every unit once, and copy all units' weights to `whole`, one after the other, unless it is NULL. */
tw_status_t tw_walk_all(tw_engine_t *engine, void *whole);
/** Point engine->weight_ptrs at a unit's tensors in `whole`, the unit's weights one after the other. */
void tw_walk_point_at(tw_engine_t *engine, size_t unit, const void *whole);

/* ---- sync.c: used only with a delta; else no unit is ever ready, so there is nothing to wait for */
/** Begin a sync: the masters of units 0, 1, ... will be updated, in this order. */
void tw_sync_start(tw_engine_t *engine, tw_hpz_sync_t kind);
/** Note that the next unit's masters have been updated. */
tw_status_t tw_sync_ready(tw_engine_t *engine);
/** Advance the sync as far as possible without waiting. */
tw_status_t tw_sync_advance(tw_engine_t *engine);
/** Wait until a unit's replica is up to date. */
tw_status_t tw_sync_need(tw_engine_t *engine, size_t unit);
/** Return how many elements of a unit's replica this rank holds. */
size_t tw_sync_replica_elems(const tw_engine_t *engine, size_t unit);

/* ---- reduce.c */
/** Point engine->grad_ptrs at the buffers to which backward adds a unit's gradients. In the step's first
 *  micro-batch (is_first) zero them. */
void tw_reduce_begin(tw_engine_t *engine, size_t index, int is_first);
/** Post the reduction of a unit's gradients, once they are complete. */
tw_status_t tw_reduce_post(tw_engine_t *engine, size_t index);
/** Wait for all reductions, and add this rank's shards of gradients to the norm, unless it is NULL. The
 *  blocks' shards are added while the root's gradients are still being reduced. */
tw_status_t tw_reduce_finish(tw_engine_t *engine, tw_norm_t *norm);
/** Return the most elements of a unit that are reduced at a time. Larger units are reduced in slices. */
size_t tw_reduce_slice_elems(const tw_engine_t *engine);

/* ---- loss.c: measures the error of lossy codecs, in every 16th step */
tw_status_t tw_loss_init(tw_engine_t *engine);
/** Measure a sample of the gradients that an operation is about to send. */
void tw_loss_gradients(tw_engine_t *engine, const tw_coll_args_t *args);
/** Measure a sample of this rank's shards of weights: the errors of encoding them for a gather. */
void tw_loss_weights(tw_engine_t *engine);
void tw_loss_merge(tw_engine_losses_t *sum, const tw_engine_losses_t *more);

/* ---- exchange.c */
/** Figures that ranks exchange at the end of a step. Before tw_engine_exchange they are this rank's (its
 *  notices in notices.any). After it they are those of all ranks: loss and totals.wait_sec averaged,
 *  resident_bytes the maximum, notices combined, the rest summed. */
typedef struct tw_engine_report {
    tw_norm_t norm;
    double loss;
    tw_engine_totals_t totals;
    tw_engine_losses_t losses;
    uint64_t resident_bytes; /* tw_engine_resident_bytes, which the exchange itself fills in */
    tw_engine_notices_t notices;
} tw_engine_report_t;
tw_status_t tw_engine_exchange(tw_engine_t *engine, tw_engine_report_t *report);

/* ---- fp8.c: without model.gather=fp8 these functions do nothing */
tw_status_t tw_fp8_init(tw_engine_t *engine);
/** Agree with all ranks on the exponent of each fp8 tensor, which the new masters decide. Collective. */
tw_status_t tw_fp8_agree(tw_engine_t *engine);
/** Round the masters of a unit's fp8 tensors into its shard. */
void tw_fp8_round(const tw_engine_t *engine, size_t unit);

/* ---- groups.c */
tw_status_t tw_groups_init(tw_engine_t *engine);
/** Return AdamW's parameters for a tensor's next step. lr is the step's rate, from tw_train_lr. */
tw_quant_adamw_t tw_groups_adamw(const tw_engine_t *engine, size_t tensor, double lr,
                                 const float *grad_scale);
/** Remove the segments of frozen tensors from args, in place. Return how many segments are left. */
size_t tw_groups_leave_out(const tw_engine_t *engine, tw_coll_args_t *args);
/** In stage 3 without a delta, allocate memory for whole frozen tensors. */
tw_status_t tw_frozen_init(tw_engine_t *engine);
/** Gather frozen tensors from all ranks, after the masters have been loaded. */
tw_status_t tw_frozen_gather(tw_engine_t *engine);
/** Point engine->weight_ptrs of a unit's frozen tensors at the kept whole tensors. */
void tw_frozen_point_at(tw_engine_t *engine, size_t unit);
/** Copy a unit's kept frozen tensors to their places in `whole`, the unit's gathered weights. */
void tw_frozen_copy(const tw_engine_t *engine, size_t unit, void *whole);

/* ---- muon.c */
tw_status_t tw_muon_init(tw_engine_t *engine);
/** Return 1 if a tensor is a matrix that Muon updates. */
int tw_muon_has(const tw_engine_t *engine, size_t tensor);
/** Update a unit's matrices, in three calls. tw_muon_send sends momenta to the matrices' owners. In
 *  tw_muon_answer each owner makes its matrices orthogonal and sends the pieces back. tw_muon_apply updates
 *  masters with them. Up to TW_ENGINE_MUON_PLACES consecutive units may be under way. lr is the step's rate,
 *  from tw_train_lr. Collective. They do nothing without Muon. */
tw_status_t tw_muon_send(tw_engine_t *engine, size_t unit, float grad_scale);
tw_status_t tw_muon_answer(tw_engine_t *engine, size_t unit);
tw_status_t tw_muon_apply(tw_engine_t *engine, size_t unit, double lr);
/** Wait for operations under way, after a failure. Their results are not used. */
void tw_muon_give_up(tw_engine_t *engine);

/* ---- sample.c */
/** Count the memory that sampling will need on rank 0 as TW_ENGINE_SCRATCH. */
void tw_sample_init(tw_engine_t *engine);

/* ---- update.c */
tw_status_t tw_update_init(tw_engine_t *engine);
void tw_update_cleanup(tw_engine_t *engine);
/** Run the optimizer's step on this rank's shards, and send the new weights to all ranks. */
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
/** Write from [n] to `to`, type [n]: bf16 or fp32. */
void tw_engine_convert(const tw_engine_t *engine, const float *from, tw_type_t type, void *to, size_t n);
void tw_engine_copy(const tw_engine_t *engine, const void *from, void *to, size_t n_bytes);
void tw_engine_clear(const tw_engine_t *engine, float *to, size_t n);
/** Add gradients to the norm, as tw_norm_add. */
void tw_engine_add_norm(const tw_engine_t *engine, tw_norm_t *norm, const void *grads, size_t n);

/* ---- totals.c */
/** Return all bytes and times so far, of training and of all other work. */
tw_engine_totals_t tw_engine_totals_get(const tw_engine_t *engine);
void tw_engine_totals_add(tw_engine_totals_t *sum, const tw_engine_totals_t *more);
tw_engine_totals_t tw_engine_totals_since(const tw_engine_totals_t *after, const tw_engine_totals_t *before);
/** Count bytes and time since `begin` as `what`, not as training. Nothing may be in flight at either time. */
void tw_engine_aside_end(tw_engine_t *engine, tw_engine_aside_t what, const tw_engine_totals_t *begin);

/* ---- alarm.c */
/** Decide if a step is bad. *is_bad is 1 if the step is to be skipped or rolled back. If thinwire.bad_step is
 *  "stop", a bad step returns TW_ERR_MISMATCH. */
tw_status_t tw_engine_alarm(tw_engine_t *engine, const tw_engine_report_t *report, double norm, int *is_bad);

/* ---- outliers.c */
tw_status_t tw_outliers_init(tw_engine_t *engine);
/** Return how many standard deviations a loss or norm is above the mean of the last thinwire.z_window ones,
 *  or 0 if there were fewer. */
typedef enum tw_engine_outlier { TW_ENGINE_LOSS, TW_ENGINE_NORM } tw_engine_outlier_t;
double tw_outliers_z(const tw_engine_t *engine, tw_engine_outlier_t of, double value);
void tw_outliers_add(tw_engine_t *engine, double loss, double norm);

TW_C_END
