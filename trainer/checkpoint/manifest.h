/** Private to trainer/checkpoint: manifest.json, which makes a folder a checkpoint.
 *
 *      {"body": {"format": 1, "step": 600, "seed": 1, "batch": 8, "seq_len": 128, "n_ranks": 4,
 *                "run": "0123456789abcdef", "recent_loss": 2.5, "best_val": 2.4, "passed_over": 0,
 *                "history": [2.5, 2.6, 0.7, 0.8], "facts": {"optimizer.params.lr": "0.0006", ...},
 *                "model": {"family": "gpt2", "n_layer": 4, ..., "layer_norm_epsilon": 1e-05},
 *                "tensors": [{"name": "transformer.wte.weight", "n_elems": 32768}, ...],
 *                "shards": [{"bytes": 1234, "xxh3": "0123456789abcdef"}, ...]},
 *       "xxh3": "..."}
 *
 *  The last checksum is of the body, written compactly with sorted keys. "run", "recent_loss", "best_val",
 *  "passed_over", "history", "facts" and "model" may be missing: older programs did not write them. */
#pragma once

#include "trainer/checkpoint/checkpoint.h"
#include "trainer/lines.h"

TW_C_BEGIN

typedef struct tw_manifest_shard {
    uint64_t bytes, checksum;
} tw_manifest_shard_t;

typedef struct tw_manifest {
    tw_checkpoint_run_t run;
    tw_manifest_shard_t *shards; /**< [run.world], allocated */
    tw_lines_t facts;            /**< after reading, run.facts points into its text */
    double *history;             /**< after reading, run.history points to it */
} tw_manifest_t;

/** Write the manifest and flush it to the disk. TW_ERR_IO, TW_ERR_NO_MEMORY; logged. */
tw_status_t tw_manifest_write(const char *path, const tw_manifest_t *manifest, const tw_model_t *model);
/** Read a manifest and compare it with the model. Errors, logged: TW_ERR_NOT_FOUND, TW_ERR_IO; TW_ERR_FORMAT,
 *  damaged; TW_ERR_MISMATCH, it is of another model. */
tw_status_t tw_manifest_read(const char *path, const tw_model_t *model, tw_manifest_t *manifest);
/** Read only the run's id, without a model. *id is 0 if an older program wrote no id. Returns 1, or 0 with
 *  *id 0 if the manifest is missing or damaged. Logs nothing. */
int tw_manifest_run_id(const char *path, uint64_t *id);
void tw_manifest_cleanup(tw_manifest_t *manifest);

TW_C_END
