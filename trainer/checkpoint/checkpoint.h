/** trainer/checkpoint: what a run needs to go on, on disk; and whole models as others read them.
 *
 *  A folder of checkpoints, which all ranks see, holds step-00000600/ and the like: one safetensors file per
 *  rank with its pieces of the optimizer's state, and manifest.json with their sizes and checksums. A step's
 *  folder has another name until all of it is on the disk: whoever finds it finds it whole, and a crash at
 *  any moment costs no more than the steps since.
 *
 *  A piece is a run of a tensor's elements, wherever the ranks' cuts were: reading takes any run from
 *  whatever files hold it, so a job of another shape goes on with it.
 *
 *  Files: files.h names and disk; manifest.h; claim.c whose steps a folder holds; lock.c; save.c, load.c;
 *  weights.c whole models. */
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
    /** [n_elems] each; only read by save, where NULL is zeros */
    float *values[TW_CHECKPOINT_KIND_COUNT];
} tw_checkpoint_piece_t;

/** Of the run; a run that goes on wants the same, but for how many ranks, to see the same data. */
typedef struct tw_checkpoint_run {
    uint64_t step; /**< steps that are done */
    uint64_t seed, batch, seq_len;
    int world;
    uint64_t id;          /**< of the run, which keeps it when it goes on; 0: not said, by an older program */
    double recent_loss;   /**< the loss that tw_engine_loaded wants; 0: the file does not say it */
    double best_val;      /**< the lowest validation loss so far; 0: none, or not said */
    uint64_t passed_over; /**< batches of data that rollbacks have passed over */
    /** [n_history] of losses and norms, as tw_engine_history says. Borrowed. */
    const double *history;
    size_t n_history;
    /** lines (trainer/lines.h) of what else it was trained with; NULL: not said. Borrowed. */
    const char *facts;
    uint64_t checksum; /**< checksum of the manifest; only read */
} tw_checkpoint_run_t;

/* ---- saving -------------------------------------------------------------------------------------------- */

typedef struct tw_checkpoint_state {
    const char *folder; /**< it is made if it is not there */
    size_t keep;        /**< how many checkpoints stay, the newest ones; at least 1 */
    const tw_model_t *model;
    tw_checkpoint_run_t run;
    /** this rank's pieces; those of all ranks together hold every element exactly once */
    const tw_checkpoint_piece_t *pieces;
    size_t n_pieces;
} tw_checkpoint_state_t;

/** Make a folder for checkpoints, or for a model, with all that it lies in, and see that it can be written
 *  into: better before the first step than at the first checkpoint. One process. TW_ERR_IO and the like;
 *  logged. */
tw_status_t tw_checkpoint_prepare(const char *path);
/** Keep a folder of checkpoints for the run `id` until *lock is closed with fclose, or the process ends.
 *  Waits 5 seconds for the one before. One process. TW_ERR_INVALID: another job has it, logged with its run,
 *  process and host; TW_ERR_IO and the like, logged. */
tw_status_t tw_checkpoint_lock(const char *folder, uint64_t id, FILE **lock);
/** Write another run's id into the lock: the run goes on as that one. */
void tw_checkpoint_lock_sign(FILE *file, uint64_t id);
/** Collective over `coll`. All ranks get the same status: TW_ERR_IO and the like are logged by the rank that
 *  met them. After an error the checkpoints that were there are still there. */
tw_status_t tw_checkpoint_save(tw_coll_t *coll, const tw_checkpoint_state_t *save);

/** The same in two parts, between which a thread of its own writes this rank's file. */
typedef struct tw_checkpoint_saving tw_checkpoint_saving_t;
/** Collective. What `save` points to stays until tw_checkpoint_save_end, but for the array of pieces; the
 *  pieces' values must not change before tw_checkpoint_save_release. Errors as of tw_checkpoint_save. */
tw_status_t tw_checkpoint_save_begin(tw_coll_t *coll, const tw_checkpoint_state_t *save,
                                     tw_checkpoint_saving_t **out);
/** Wait until the values have been taken, as long as the disk takes; past the limit of `coll` a warning names
 *  the file, once. */
void tw_checkpoint_save_release(tw_checkpoint_saving_t *saving);
/** Returns if the values have been taken; does not wait. */
int tw_checkpoint_save_is_taken(tw_checkpoint_saving_t *saving);
/** Is this rank's file on the disk, or has it failed? Does not wait. */
int tw_checkpoint_save_is_written(tw_checkpoint_saving_t *saving);
/** Collective: wait for the files of all ranks, however long that takes (past the limit of `coll` with a
 *  warning), and make a checkpoint of them. Frees `saving`. Errors as of tw_checkpoint_save. */
tw_status_t tw_checkpoint_save_end(tw_checkpoint_saving_t *saving);
/** Give a save up, as a rank alone, in place of tw_checkpoint_save_end: no checkpoint comes of it. NULL is
 *  accepted. */
void tw_checkpoint_save_drop(tw_checkpoint_saving_t *saving);

/** What a folder holds of steps of other runs. */
typedef struct tw_checkpoint_others {
    size_t n_steps;
    uint64_t last_step;
} tw_checkpoint_others_t;

/** Leave a run's id in a folder of checkpoints: from now on the steps that are gone on from there are this
 *  run's, until another one's id is left. `others`: what the folder holds of other runs. One process.
 *  TW_ERR_IO and the like; logged. */
tw_status_t tw_checkpoint_claim(const char *folder, uint64_t id, tw_checkpoint_others_t *others);
/** Does the folder hold later steps of this run? */
int tw_checkpoint_has_later(const char *folder, uint64_t id, uint64_t step);
/** The steps that may be gone on from in a folder of checkpoints, the newest first: those of the run whose id
 *  was last left there, or of any run if none was; and those whose manifest cannot be read, which may be
 *  anybody's. *steps is the caller's to free. 0 steps if there is no such folder. TW_ERR_NO_MEMORY. */
tw_status_t tw_checkpoint_candidates(const char *folder, uint64_t **steps, size_t *n_steps);
/** Is it a step's folder, rather than one of several? */
int tw_checkpoint_is_step(const char *path);
/** A damaged step gets another name, "step-00000600.damaged", so that it is not tried again; what had that
 *  name is removed. One process. TW_ERR_IO and the like; logged. */
tw_status_t tw_checkpoint_set_aside(const char *folder, uint64_t step);

/* ---- loading ------------------------------------------------------------------------------------------- */

/** An open checkpoint; one thread at a time. */
typedef struct tw_checkpoint tw_checkpoint_t;

/** Open a step's folder, or of a folder of checkpoints the newest step of the run whose id was last left
 *  there (tw_checkpoint_claim); of any run, if none was. Every rank for itself. TW_ERR_NOT_FOUND: none there;
 *  TW_ERR_FORMAT: a damaged manifest; TW_ERR_MISMATCH: of another model, logged with what differs;
 *  TW_ERR_NOT_FOUND, TW_ERR_TRUNCATED, TW_ERR_FORMAT: a rank's file is missing, too short, or no
 *  checkpoint's: all logged with the file's name. */
tw_status_t tw_checkpoint_open(const char *path, const tw_model_t *model, tw_checkpoint_t **out);
/** Open the checkpoint of a step, in a folder of checkpoints. Errors as above. */
tw_status_t tw_checkpoint_open_step(const char *folder, uint64_t step, const tw_model_t *model,
                                    tw_checkpoint_t **out);
void tw_checkpoint_close(tw_checkpoint_t *checkpoint);
const tw_checkpoint_run_t *tw_checkpoint_run_get(const tw_checkpoint_t *checkpoint);
/** Fill the values of these pieces; a NULL pointer skips its kind. The checksum of a file is compared the
 *  first time something is taken from it: TW_ERR_FORMAT, logged with the file. TW_ERR_NOT_FOUND: elements
 *  that no file holds, logged with the tensor. */
tw_status_t tw_checkpoint_read(tw_checkpoint_t *checkpoint, const tw_checkpoint_piece_t *pieces,
                               size_t n_pieces);

/* ---- whole models, as transformers writes and reads them ----------------------------------------------- */

/** Safetensors files with a model's weights, open to be read. */
typedef struct tw_weights tw_weights_t;

/** path: a file, an index of several (model.safetensors.index.json), or a folder with either. Names may lack
 *  "transformer." or "model."; what the model does not have is passed over (see
 *  tw_weights_say_left), and an lm_head that repeats the embedding. TW_ERR_MISMATCH: a tensor is missing, of
 *  another shape or not of a float type, or an lm_head that is not the embedding where the model has none of
 *  its own (logged with its name); TW_ERR_FORMAT: no such index (logged); errors of tw_safetensors_open.
 *  `model` is borrowed. */
tw_status_t tw_weights_open(const char *path, const tw_model_t *model, tw_weights_t **out);
void tw_weights_close(tw_weights_t *weights);
/** Warn of weights that the model has no place for, with their names: it may be another model than was
 *  thought. Not of causal masks and rotary frequencies, which some files have, too. */
void tw_weights_say_left(const char *path, const tw_weights_t *weights);
/** What tells these weights from others: of each tensor some runs at even distances, so that little is
 *  read. */
uint64_t tw_weights_checksum(const tw_weights_t *weights);
/** out [n_elems] = elements first .. of a tensor, as fp32. */
void tw_weights_read(const tw_weights_t *weights, size_t tensor, size_t first, size_t n_elems, float *out);

/** Write a checkpoint's weights into `folder`, made if it is not there: model.safetensors (bf16 or fp32) and
 *  config.json, which transformers opens with AutoModelForCausalLM.from_pretrained. sources: folders, up to
 *  NULL, whose config.json, generation_config.json or tokenizer_config.json, in this order, may say which
 *  tokens begin, end and fill a text: the first that does. One process. Errors of tw_checkpoint_read and of
 *  tw_safetensors_writer_create. */
tw_status_t tw_weights_export(tw_checkpoint_t *checkpoint, const tw_model_t *model, tw_type_t type,
                              const char *folder, const char *const *sources);

TW_C_END
