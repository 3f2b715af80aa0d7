/** trainer/checkpoint: saves on disk what a run needs to go on, and whole models in the format that others
 *  read.
 *
 *  A folder of checkpoints, which all ranks see, holds step-00000600/ and the like: one safetensors file per
 *  rank with its pieces of the optimizer's state, and manifest.json with their sizes and checksums. A step's
 *  folder has another name until all of it is on the disk, so a step that is found is whole, and a crash
 *  loses only the steps since.
 *
 *  A piece is a run of a tensor's elements, cut anywhere. Reading takes any run from whatever files hold it,
 *  so a job with another number of ranks can go on from it.
 *
 *  Files: files.h names and disk; manifest.h; claim.c which run a folder's steps belong to; lock.c; save.c,
 *  load.c; weights.c whole models. */
#pragma once

#include "collectives/collectives.h"
#include "core/core.h"
#include "trainer/model/model.h"

TW_C_BEGIN

/** The values that a piece has; all are fp32. */
typedef enum tw_checkpoint_kind {
    TW_CHECKPOINT_MASTER, /**< the weight itself */
    TW_CHECKPOINT_M,      /**< Adam's first moment */
    TW_CHECKPOINT_V,      /**< Adam's second moment */
    TW_CHECKPOINT_KIND_COUNT
} tw_checkpoint_kind_t;

/** Elements first .. first + n_elems - 1 of one of the model's tensors. */
typedef struct tw_checkpoint_piece {
    size_t tensor, first, n_elems;
    /** [n_elems] each; save only reads them, and takes NULL for zeros */
    float *values[TW_CHECKPOINT_KIND_COUNT];
} tw_checkpoint_piece_t;

/** Facts of the run. A run that goes on needs the same to see the same data, except for how many ranks. */
typedef struct tw_checkpoint_run {
    uint64_t step; /**< how many steps are done */
    uint64_t seed, batch, seq_len;
    int world;
    uint64_t id; /**< id of the run, which it keeps when it goes on; 0: unknown, from an older program */
    double recent_loss;   /**< recent loss, for tw_engine_loaded; 0: not in the file */
    double best_val;      /**< the lowest validation loss so far; 0: none, or not in the file */
    uint64_t passed_over; /**< batches of data that rollbacks have skipped */
    /** [n_history] losses and norms, as in tw_engine_history. Borrowed. */
    const double *history;
    size_t n_history;
    /** Other settings of the training, as lines (trainer/lines.h); NULL: not in the file. Borrowed. */
    const char *facts;
    uint64_t checksum; /**< checksum of the manifest; set by reading, save ignores it */
} tw_checkpoint_run_t;

/* ---- saving -------------------------------------------------------------------------------------------- */

typedef struct tw_checkpoint_state {
    const char *folder; /**< folder of checkpoints; it is made if it is not there */
    size_t keep;        /**< how many checkpoints, the newest ones, are kept; at least 1 */
    const tw_model_t *model;
    tw_checkpoint_run_t run;
    /** This rank's pieces; those of all ranks together hold every element exactly once. */
    const tw_checkpoint_piece_t *pieces;
    size_t n_pieces;
} tw_checkpoint_state_t;

/** Make a folder for checkpoints or a model, with its parents, and check that it can be written to: better
 *  before the first step than at the first checkpoint. One process calls it. TW_ERR_IO and the like;
 *  logged. */
tw_status_t tw_checkpoint_prepare(const char *path);
/** Lock a folder of checkpoints for the run `id`, until *lock is closed with fclose or the process ends. It
 *  waits up to 5 seconds for another job's lock. One process calls it. TW_ERR_INVALID: another job has it,
 *  logged with its run, process and host; TW_ERR_IO and the like, logged. */
tw_status_t tw_checkpoint_lock(const char *folder, uint64_t id, FILE **lock);
/** Write another run's id into the lock: the run goes on as that one. */
void tw_checkpoint_lock_sign(FILE *file, uint64_t id);
/** Save a checkpoint. Collective over `coll`; all ranks get the same status. TW_ERR_IO and the like are
 *  logged by the rank that met them. After an error the older checkpoints are still there. */
tw_status_t tw_checkpoint_save(tw_coll_t *coll, const tw_checkpoint_state_t *save);

/** A save in two parts, between which a thread of its own writes this rank's file. */
typedef struct tw_checkpoint_saving tw_checkpoint_saving_t;
/** Collective. `save` and all that it points to, except the array of pieces, are borrowed until
 *  tw_checkpoint_save_end; the pieces' values must not change before tw_checkpoint_save_release. Errors are
 *  those of tw_checkpoint_save. */
tw_status_t tw_checkpoint_save_begin(tw_coll_t *coll, const tw_checkpoint_state_t *save,
                                     tw_checkpoint_saving_t **out);
/** Wait until the values are read, however long it takes; past the timeout of `coll` it warns once. */
void tw_checkpoint_save_release(tw_checkpoint_saving_t *saving);
/** Return 1 if the values have been read. Does not wait. */
int tw_checkpoint_save_is_taken(tw_checkpoint_saving_t *saving);
/** Return 1 if this rank's file is on the disk, or has failed. Does not wait. */
int tw_checkpoint_save_is_written(tw_checkpoint_saving_t *saving);
/** Wait for the files of all ranks, however long that takes (with a warning past the timeout of `coll`), and
 *  make a checkpoint of them. Collective. Frees `saving`. Errors are those of tw_checkpoint_save. */
tw_status_t tw_checkpoint_save_end(tw_checkpoint_saving_t *saving);
/** Abandon a save, alone, instead of tw_checkpoint_save_end: no checkpoint is made. Accepts NULL. */
void tw_checkpoint_save_drop(tw_checkpoint_saving_t *saving);

/** The steps of other runs that a folder holds. */
typedef struct tw_checkpoint_others {
    size_t n_steps;
    uint64_t last_step;
} tw_checkpoint_others_t;

/** Write a run's id into a folder of checkpoints: jobs that resume from the folder now take this run's steps,
 *  until another id is written. `others` becomes what the folder holds of other runs. One process calls it.
 *  TW_ERR_IO and the like; logged. */
tw_status_t tw_checkpoint_claim(const char *folder, uint64_t id, tw_checkpoint_others_t *others);
/** Return 1 if the folder holds later steps of this run. */
int tw_checkpoint_has_later(const char *folder, uint64_t id, uint64_t step);
/** List the steps in a folder of checkpoints that a job may resume from, the newest first: those of the run
 *  whose id was last written there (tw_checkpoint_claim), or of any run if none was; and those whose manifest
 *  cannot be read, which may be of any run. The caller frees *steps. There are 0 steps if there is no such
 *  folder. TW_ERR_NO_MEMORY. */
tw_status_t tw_checkpoint_candidates(const char *folder, uint64_t **steps, size_t *n_steps);
/** Return 1 if `path` is a single step's folder, not a folder of checkpoints. */
int tw_checkpoint_is_step(const char *path);
/** Rename a damaged step to "step-00000600.damaged", so that it is not tried again; anything of that name is
 *  removed before. One process calls it. TW_ERR_IO and the like; logged. */
tw_status_t tw_checkpoint_set_aside(const char *folder, uint64_t step);

/* ---- loading ------------------------------------------------------------------------------------------- */

/** An open checkpoint; one thread at a time. */
typedef struct tw_checkpoint tw_checkpoint_t;

/** Open a step's folder, or, in a folder of checkpoints, the newest step of the run whose id was last written
 *  there (tw_checkpoint_claim), or of any run if none was. Every rank calls it for itself. TW_ERR_NOT_FOUND:
 *  none is there; TW_ERR_FORMAT: a damaged manifest; TW_ERR_MISMATCH: it is of another model, logged with
 *  what differs; TW_ERR_NOT_FOUND, TW_ERR_TRUNCATED, TW_ERR_FORMAT: a rank's file is missing, too short, or
 *  no checkpoint's: all logged with the file's name. */
tw_status_t tw_checkpoint_open(const char *path, const tw_model_t *model, tw_checkpoint_t **out);
/** Open the checkpoint of a step, in a folder of checkpoints. Errors as above. */
tw_status_t tw_checkpoint_open_step(const char *folder, uint64_t step, const tw_model_t *model,
                                    tw_checkpoint_t **out);
void tw_checkpoint_close(tw_checkpoint_t *checkpoint);
const tw_checkpoint_run_t *tw_checkpoint_run_get(const tw_checkpoint_t *checkpoint);
/** Fill the values of these pieces; a NULL pointer skips its kind. A file's checksum is verified the first
 *  time something is read from it. TW_ERR_FORMAT: it is wrong, logged with the file; TW_ERR_NOT_FOUND: no
 *  file holds some elements, logged with the tensor. */
tw_status_t tw_checkpoint_read(tw_checkpoint_t *checkpoint, const tw_checkpoint_piece_t *pieces,
                               size_t n_pieces);

/* ---- whole models, as transformers writes and reads them ----------------------------------------------- */

/** Safetensors files with a model's weights, open to be read. */
typedef struct tw_weights tw_weights_t;

/** Open a model's weights. `path` is a file, an index of several (model.safetensors.index.json), or a folder
 *  with either. Names may lack "transformer." or "model.". Tensors that the model does not have are ignored
 *  (see tw_weights_say_left), and so is an lm_head that repeats the embedding. TW_ERR_MISMATCH: a tensor is
 *  missing, of another shape or not of a float type, or an lm_head that is not the embedding where the model
 *  has none of its own (logged with its name); TW_ERR_FORMAT: no such index (logged); errors of
 *  tw_safetensors_open. `model` is borrowed. */
tw_status_t tw_weights_open(const char *path, const tw_model_t *model, tw_weights_t **out);
void tw_weights_close(tw_weights_t *weights);
/** Warn of weights that the model does not have, with their names, as they may be another model's. It does
 *  not warn of causal masks and rotary frequencies, which some files have, too. */
void tw_weights_say_left(const char *path, const tw_weights_t *weights);
/** Return a checksum that tells these weights from others, of a few evenly spaced runs of each tensor. */
uint64_t tw_weights_checksum(const tw_weights_t *weights);
/** Read n_elems elements of a tensor, from `first` on, to `out` as fp32. */
void tw_weights_read(const tw_weights_t *weights, size_t tensor, size_t first, size_t n_elems, float *out);

/** Write a checkpoint's weights into `folder`, made if it is not there: model.safetensors (bf16 or fp32) and
 *  config.json, which transformers opens with AutoModelForCausalLM.from_pretrained. `sources` is a
 *  NULL-terminated list of folders; the first whose config.json, generation_config.json or
 *  tokenizer_config.json, in this order, says which tokens begin, end and pad a text decides that. One
 *  process calls it. Errors are those of tw_checkpoint_read and tw_safetensors_writer_create. */
tw_status_t tw_weights_export(tw_checkpoint_t *checkpoint, const tw_model_t *model, tw_type_t type,
                              const char *folder, const char *const *sources);

TW_C_END
