/** trainer/checkpoint: saves checkpoints, from which a run can resume, and whole models in the format that
 *  transformers reads.
 *
 *  A folder of checkpoints, which all ranks can access, has a folder for each saved step, such as
 *  step-00000600/: one safetensors file per rank, with the rank's pieces of the optimizer's state, and
 *  manifest.json with the files' sizes and checksums. While a step is written, its folder's name ends in
 *  ".tmp". So a crash loses only the steps since the last complete checkpoint.
 *
 *  A piece is a range of a tensor's elements, cut anywhere. Reading finds any range in whichever files have
 *  it, so a job with another number of ranks can resume from a checkpoint.
 *
 *  Files: files.h names and disk; manifest.h; claim.c the run of a folder's steps; lock.c; save.c, load.c;
 *  weights.c whole models. */
#pragma once

#include "collectives/collectives.h"
#include "core/core.h"
#include "trainer/model/model.h"

TW_C_BEGIN

/** The kinds of values that a checkpoint has for each element. All are fp32. */
typedef enum tw_checkpoint_kind {
    TW_CHECKPOINT_MASTER, /**< the weight itself */
    TW_CHECKPOINT_M,      /**< Adam's first moment */
    TW_CHECKPOINT_V,      /**< Adam's second moment */
    TW_CHECKPOINT_KIND_COUNT
} tw_checkpoint_kind_t;

/** Elements first .. first + n_elems - 1 of one of the model's tensors. */
typedef struct tw_checkpoint_piece {
    size_t tensor, first, n_elems;
    /** [n_elems] each. Saving only reads them, and NULL stands for zeros */
    float *values[TW_CHECKPOINT_KIND_COUNT];
} tw_checkpoint_piece_t;

/** Facts of a run. To read the same data, a resumed run must have the same seed, batch and seq_len. */
typedef struct tw_checkpoint_run {
    uint64_t step; /**< how many steps are done */
    uint64_t seed, batch, seq_len;
    int world;
    uint64_t id; /**< id of the run, the same after resuming; 0: unknown, as an older program wrote it */
    double recent_loss;   /**< recent mean loss, for tw_engine_loaded; 0: not in the file */
    double best_val;      /**< the lowest validation loss so far; 0: none, or not in the file */
    uint64_t passed_over; /**< batches of data that were skipped after rollbacks */
    /** [n_history] losses and gradient norms of recent steps, as in tw_engine_past_t. Borrowed. */
    const double *history;
    size_t n_history;
    /** Other settings of the training, as lines (trainer/lines.h); NULL: not in the file. Borrowed. */
    const char *facts;
    uint64_t checksum; /**< checksum of the manifest; set by reading, ignored by saving */
} tw_checkpoint_run_t;

/* ---- saving -------------------------------------------------------------------------------------------- */

typedef struct tw_checkpoint_state {
    const char *folder; /**< folder of checkpoints; created if it does not exist */
    size_t keep;        /**< number of newest checkpoints of this run to keep; at least 1 */
    const tw_model_t *model;
    tw_checkpoint_run_t run;
    /** This rank's pieces. The pieces of all ranks together contain every element exactly once. */
    const tw_checkpoint_piece_t *pieces;
    size_t n_pieces;
} tw_checkpoint_state_t;

/** Create a folder for checkpoints or a model, with its parents, and check that it is writable. So a run
 *  fails before its first step, not at its first checkpoint. One process calls it. TW_ERR_IO and the like;
 *  logged. */
tw_status_t tw_checkpoint_prepare(const char *path);
/** Lock a folder of checkpoints for the run `id`, until *lock is closed with fclose or the process ends.
 *  Waits up to 5 seconds. Only warns if the file system has no locks. One process calls it. TW_ERR_INVALID:
 *  another job has the lock; logged with its run, process and host. TW_ERR_IO and the like; logged. */
tw_status_t tw_checkpoint_lock(const char *folder, uint64_t id, FILE **lock);
/** Write another run's id into the lock, after this job has resumed that run. */
void tw_checkpoint_lock_sign(FILE *file, uint64_t id);
/** Save a checkpoint. Collective over `coll`; all ranks return the same status. TW_ERR_IO and the like,
 *  logged by the rank that had the error. After an error the older checkpoints still exist. */
tw_status_t tw_checkpoint_save(tw_coll_t *coll, const tw_checkpoint_state_t *save);

/** A save in two parts. Between them a thread writes this rank's file while training goes on. */
typedef struct tw_checkpoint_saving tw_checkpoint_saving_t;
/** Start to save. Collective. `save` and all that it points to, except the array of pieces, are borrowed
 *  until tw_checkpoint_save_end. The pieces' values must not change before tw_checkpoint_save_release. Errors
 *  are those of tw_checkpoint_save. */
tw_status_t tw_checkpoint_save_begin(tw_coll_t *coll, const tw_checkpoint_state_t *save,
                                     tw_checkpoint_saving_t **out);
/** Wait until the thread has read the pieces' values. Warns once after the timeout of `coll`. */
void tw_checkpoint_save_release(tw_checkpoint_saving_t *saving);
/** Return 1 if the thread has read the pieces' values. Does not wait. */
int tw_checkpoint_save_is_taken(tw_checkpoint_saving_t *saving);
/** Return 1 if this rank's file is on the disk, or if writing it has failed. Does not wait. */
int tw_checkpoint_save_is_written(tw_checkpoint_saving_t *saving);
/** Wait without limit for the files of all ranks, and complete the checkpoint. Warns once after the timeout
 *  of `coll`. Collective. Frees `saving`. Errors are those of tw_checkpoint_save. */
tw_status_t tw_checkpoint_save_end(tw_checkpoint_saving_t *saving);
/** Abandon a save instead of calling tw_checkpoint_save_end: no checkpoint is made. Not collective. */
void tw_checkpoint_save_drop(tw_checkpoint_saving_t *saving);

/** The steps in a folder that belong to other runs. */
typedef struct tw_checkpoint_others {
    size_t n_steps;
    uint64_t last_step;
} tw_checkpoint_others_t;

/** Write a run's id into a folder of checkpoints. From now on, jobs that resume from the folder take only
 *  this run's steps. `others` is filled with the steps of other runs. One process calls it. TW_ERR_IO and the
 *  like; logged. */
tw_status_t tw_checkpoint_claim(const char *folder, uint64_t id, tw_checkpoint_others_t *others);
/** Return 1 if the folder has steps of this run after `step`. */
int tw_checkpoint_has_later(const char *folder, uint64_t id, uint64_t step);
/** List the steps in a folder of checkpoints from which a job may resume, the newest first. These are the
 *  steps of the run whose id tw_checkpoint_claim wrote last, or all steps if it wrote none. Steps with an
 *  unreadable manifest are included, since they may belong to that run. The caller frees *steps. *n_steps is
 *  0 if there is no such folder. TW_ERR_NO_MEMORY. */
tw_status_t tw_checkpoint_candidates(const char *folder, uint64_t **steps, size_t *n_steps);
/** Return 1 if `path` is a single step's folder, not a folder of checkpoints. */
int tw_checkpoint_is_step(const char *path);
/** Rename a damaged step to "step-00000600.damaged", so that no job tries it again. Replaces an older folder
 *  of that name. One process calls it. TW_ERR_IO and the like; logged. */
tw_status_t tw_checkpoint_set_aside(const char *folder, uint64_t step);

/* ---- loading ------------------------------------------------------------------------------------------- */

/** An open checkpoint. Only one thread at a time may use it. */
typedef struct tw_checkpoint tw_checkpoint_t;

/** Open a step's folder. If `path` is a folder of checkpoints, open the newest step of the run whose id
 *  tw_checkpoint_claim wrote last, or of all runs if it wrote none. Each rank calls it for itself. Errors,
 *  logged with the file's name: TW_ERR_NOT_FOUND, no checkpoint, or a rank's file is missing; TW_ERR_FORMAT,
 *  a damaged manifest or file; TW_ERR_TRUNCATED, a file of wrong size; TW_ERR_MISMATCH, another model, logged
 *  with the difference. */
tw_status_t tw_checkpoint_open(const char *path, const tw_model_t *model, tw_checkpoint_t **out);
/** Open the checkpoint of a step in a folder of checkpoints. Errors are those of tw_checkpoint_open. */
tw_status_t tw_checkpoint_open_step(const char *folder, uint64_t step, const tw_model_t *model,
                                    tw_checkpoint_t **out);
void tw_checkpoint_close(tw_checkpoint_t *checkpoint);
const tw_checkpoint_run_t *tw_checkpoint_run_get(const tw_checkpoint_t *checkpoint);
/** Read values into these pieces; kinds with a NULL pointer are skipped. The first read from a file verifies
 *  its checksum. TW_ERR_FORMAT: a wrong checksum, logged with the file. TW_ERR_NOT_FOUND: some elements are
 *  in no file, logged with the tensor. */
tw_status_t tw_checkpoint_read(tw_checkpoint_t *checkpoint, const tw_checkpoint_piece_t *pieces,
                               size_t n_pieces);

/* ---- whole models, as transformers writes and reads them ----------------------------------------------- */

/** Open safetensors files with a model's weights. */
typedef struct tw_weights tw_weights_t;

/** Open a model's weights. `path` is a file, an index of several files (model.safetensors.index.json), or a
 *  folder with either. Names may lack the prefix "transformer." or "model.". Tensors that the model does not
 *  have are ignored (see tw_weights_say_left). If the embedding is also the model's output layer, an lm_head
 *  in the file must equal it. Errors, logged: TW_ERR_MISMATCH, with the tensor's name: it is missing, has
 *  another shape or no float type, or is such an lm_head that differs; TW_ERR_FORMAT, a damaged index. Also
 *  errors of tw_safetensors_open. `model` is borrowed. */
tw_status_t tw_weights_open(const char *path, const tw_model_t *model, tw_weights_t **out);
void tw_weights_close(tw_weights_t *weights);
/** Warn of tensors that the model does not have, with their names, since the file may be of another model.
 *  Causal masks and rotary frequencies, which some published files have, cause no warning. */
void tw_weights_say_left(const char *path, const tw_weights_t *weights);
/** Return a checksum that identifies these weights. It covers a few evenly spaced ranges of each tensor. */
uint64_t tw_weights_checksum(const tw_weights_t *weights);
/** Read elements first .. first + n_elems - 1 of a tensor as fp32 into out [n_elems]. */
void tw_weights_read(const tw_weights_t *weights, size_t tensor, size_t first, size_t n_elems, float *out);

/** Write a checkpoint's weights into `folder`, which is created if it does not exist: model.safetensors
 *  (type: bf16 or fp32) and config.json, for AutoModelForCausalLM.from_pretrained of transformers. `sources`
 *  is a NULL-terminated list of folders in which the ids of the tokens are looked up that begin, end and pad
 *  a text: the first that has an id in config.json, generation_config.json or tokenizer_config.json, in this
 *  order. One process calls it. Errors are those of tw_checkpoint_read and tw_safetensors_writer_create. */
tw_status_t tw_weights_export(tw_checkpoint_t *checkpoint, const tw_model_t *model, tw_type_t type,
                              const char *folder, const char *const *sources);

TW_C_END
