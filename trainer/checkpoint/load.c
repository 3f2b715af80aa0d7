/* Loads checkpoints. Opening one reads all files' headers; data are read when a caller needs them. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/claim.h"
#include "trainer/checkpoint/files.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/shard.h"

struct tw_checkpoint {
    const tw_model_t *model;
    tw_manifest_t manifest;
    char folder[TW_CHECKPOINT_PATH_BYTES];
    tw_safetensors_t **files; /* [world] */
    int *verified;            /* [world] 1: the file's checksum was verified */
    tw_shard_range_t *ranges; /* sorted by kind, tensor, first element */
    size_t n_ranges;
};

static tw_status_t load_no_memory(const tw_checkpoint_t *checkpoint)
{
    return tw_fail(TW_ERR_NO_MEMORY, "%s: out of memory", checkpoint->folder);
}

static tw_status_t shard_path(const tw_checkpoint_t *checkpoint, int rank, char *path)
{
    char name[32];
    tw_checkpoint_shard_name(rank, name);
    return tw_checkpoint_path(path, "%s/%s", checkpoint->folder, name);
}

/* ---- opening ------------------------------------------------------------------------------------------- */

static int has_manifest(const char *folder)
{
    char path[TW_CHECKPOINT_PATH_BYTES];
    struct stat info;
    return tw_checkpoint_path(path, "%s/%s", folder, TW_CHECKPOINT_MANIFEST) == TW_OK &&
           stat(path, &info) == 0;
}

int tw_checkpoint_is_step(const char *path)
{
    return has_manifest(path);
}

/** Find the newest step of a run, or of all runs if id is 0. Returns 0 if there is none. */
static int newest_step(const char *folder, uint64_t id, const uint64_t *steps, size_t n_steps, uint64_t *step)
{
    for (size_t i = n_steps; i-- > 0;) {
        if (id == 0 || tw_checkpoint_step_run(folder, steps[i]) == id) {
            *step = steps[i];
            return 1;
        }
    }
    return 0;
}

static tw_status_t find_step(const char *folder, const uint64_t *steps, size_t n_steps, uint64_t *step)
{
    uint64_t id = tw_checkpoint_claimed(folder);
    char name[32];
    if (newest_step(folder, id, steps, n_steps, step)) {
        return TW_OK;
    }
    if (n_steps > 0) {
        tw_checkpoint_step_name(steps[n_steps - 1], name);
        tw_error("%s: the run that began last here (%016" PRIx64
                 ") has saved no step; %s is another run's: name it, %s/%s, to go on from there",
                 folder, id, name, folder, name);
    } else {
        tw_error("%s: no checkpoint there", folder);
    }
    return TW_ERR_NOT_FOUND;
}

/** Find a step's folder: `path` itself, or, if that is a folder of checkpoints, its newest step. */
static tw_status_t find_folder(const char *path, char *folder)
{
    if (has_manifest(path)) {
        return tw_checkpoint_path(folder, "%s", path);
    }
    uint64_t *steps, step;
    size_t n_steps;
    char name[32];
    tw_status_t status = tw_checkpoint_steps(path, 0, &steps, &n_steps);
    if (status == TW_OK || status == TW_ERR_NOT_FOUND) {
        status = find_step(path, steps, n_steps, &step);
    }
    if (status == TW_OK) {
        tw_checkpoint_step_name(step, name);
        status = tw_checkpoint_path(folder, "%s/%s", path, name);
    }
    free(steps);
    return status;
}

static tw_status_t check_size(const char *path, uint64_t want)
{
    struct stat info;
    TW_FAIL_IF(stat(path, &info) != 0, TW_ERR_NOT_FOUND, "%s: this shard is missing", path);
    TW_FAIL_IF((uint64_t)info.st_size != want, TW_ERR_TRUNCATED,
               "%s: this shard has %lld bytes, the manifest says %" PRIu64, path, (long long)info.st_size,
               want);
    return TW_OK;
}

static tw_status_t add_ranges(tw_checkpoint_t *checkpoint, const char *path, int rank)
{
    const tw_safetensors_t *file = checkpoint->files[rank];
    size_t n = tw_safetensors_count(file);
    tw_shard_range_t *longer =
        realloc(checkpoint->ranges, (checkpoint->n_ranges + n + 1) * sizeof(*checkpoint->ranges));
    if (!longer) {
        return load_no_memory(checkpoint);
    }
    checkpoint->ranges = longer;
    tw_status_t status = TW_OK;
    for (size_t i = 0; i < n && status == TW_OK; i++) {
        status = tw_shard_range_of(path, checkpoint->model, tw_safetensors_get(file, i), rank,
                                   &checkpoint->ranges[checkpoint->n_ranges]);
        checkpoint->n_ranges += status == TW_OK;
    }
    return status;
}

static tw_status_t open_shard(tw_checkpoint_t *checkpoint, int rank)
{
    char path[TW_CHECKPOINT_PATH_BYTES];
    tw_status_t status = shard_path(checkpoint, rank, path);
    status = status == TW_OK ? check_size(path, checkpoint->manifest.shards[rank].bytes) : status;
    status = status == TW_OK ? tw_safetensors_open(path, &checkpoint->files[rank]) : status;
    return status == TW_OK ? add_ranges(checkpoint, path, rank) : status;
}

static int compare_keys(const tw_shard_range_t *x, int kind, size_t tensor, size_t first)
{
    if (x->kind != kind) {
        return x->kind < kind ? -1 : 1;
    }
    if (x->tensor != tensor) {
        return x->tensor < tensor ? -1 : 1;
    }
    return x->first < first ? -1 : x->first > first;
}

static int compare_ranges(const void *a, const void *b)
{
    const tw_shard_range_t *y = b;
    return compare_keys(a, y->kind, y->tensor, y->first);
}

static tw_status_t open_shards(tw_checkpoint_t *checkpoint)
{
    size_t world = (size_t)checkpoint->manifest.run.world;
    checkpoint->files = calloc(world, sizeof(*checkpoint->files));
    checkpoint->verified = calloc(world, sizeof(*checkpoint->verified));
    if (!checkpoint->files || !checkpoint->verified) {
        return load_no_memory(checkpoint);
    }
    for (size_t rank = 0; rank < world; rank++) {
        TW_TRY(open_shard(checkpoint, (int)rank));
    }
    if (checkpoint->n_ranges > 0) {
        qsort(checkpoint->ranges, checkpoint->n_ranges, sizeof(*checkpoint->ranges), compare_ranges);
    }
    return TW_OK;
}

static tw_status_t open_manifest(tw_checkpoint_t *checkpoint, const char *path)
{
    char manifest[TW_CHECKPOINT_PATH_BYTES];
    tw_status_t status = find_folder(path, checkpoint->folder);
    if (status == TW_OK) {
        status = tw_checkpoint_path(manifest, "%s/%s", checkpoint->folder, TW_CHECKPOINT_MANIFEST);
    }
    return status == TW_OK ? tw_manifest_read(manifest, checkpoint->model, &checkpoint->manifest) : status;
}

tw_status_t tw_checkpoint_open(const char *path, const tw_model_t *model, tw_checkpoint_t **out)
{
    tw_checkpoint_t *checkpoint = calloc(1, sizeof(*checkpoint));
    TW_FAIL_IF(!checkpoint, TW_ERR_NO_MEMORY, "%s: out of memory", path);
    checkpoint->model = model;
    tw_status_t status = open_manifest(checkpoint, path);
    status = status == TW_OK ? open_shards(checkpoint) : status;
    if (status != TW_OK) {
        tw_checkpoint_close(checkpoint);
        return status;
    }
    *out = checkpoint;
    return TW_OK;
}

tw_status_t tw_checkpoint_open_step(const char *folder, uint64_t step, const tw_model_t *model,
                                    tw_checkpoint_t **out)
{
    char path[TW_CHECKPOINT_PATH_BYTES], name[32];
    tw_checkpoint_step_name(step, name);
    tw_status_t status = tw_checkpoint_path(path, "%s/%s", folder, name);
    return status == TW_OK ? tw_checkpoint_open(path, model, out) : status;
}

void tw_checkpoint_close(tw_checkpoint_t *checkpoint)
{
    if (!checkpoint) {
        return;
    }
    for (int rank = 0; checkpoint->files && rank < checkpoint->manifest.run.world; rank++) {
        tw_safetensors_close(checkpoint->files[rank]);
    }
    free(checkpoint->files);
    free(checkpoint->verified);
    free(checkpoint->ranges);
    tw_manifest_cleanup(&checkpoint->manifest);
    free(checkpoint);
}

const tw_checkpoint_run_t *tw_checkpoint_run_get(const tw_checkpoint_t *checkpoint)
{
    return &checkpoint->manifest.run;
}

/* ---- reading ------------------------------------------------------------------------------------------- */

static tw_status_t verify(tw_checkpoint_t *checkpoint, int rank)
{
    if (checkpoint->verified[rank]) {
        return TW_OK;
    }
    char path[TW_CHECKPOINT_PATH_BYTES];
    uint64_t checksum, bytes;
    tw_status_t status = shard_path(checkpoint, rank, path);
    status = status == TW_OK ? tw_checkpoint_checksum(path, &checksum, &bytes) : status;
    if (status == TW_OK && checksum != checkpoint->manifest.shards[rank].checksum) {
        tw_error("%s: this shard is damaged: its checksum is %016" PRIx64 ", the manifest says %016" PRIx64,
                 path, checksum, checkpoint->manifest.shards[rank].checksum);
        status = TW_ERR_FORMAT;
    }
    checkpoint->verified[rank] = status == TW_OK;
    return status;
}

/** Return the range that contains an element, or NULL. Only the last range that begins at or before the
 *  element can contain it. */
static const tw_shard_range_t *find_range(const tw_checkpoint_t *checkpoint, int kind, size_t tensor,
                                          size_t elem)
{
    size_t low = 0, high = checkpoint->n_ranges;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (compare_keys(&checkpoint->ranges[middle], kind, tensor, elem) <= 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    const tw_shard_range_t *range = low > 0 ? &checkpoint->ranges[low - 1] : NULL;
    int holds =
        range && range->kind == kind && range->tensor == tensor && elem - range->first < range->n_elems;
    return holds ? range : NULL;
}

static tw_status_t nowhere(const tw_checkpoint_t *checkpoint, size_t tensor, size_t elem)
{
    size_t n_tensors;
    return tw_fail(TW_ERR_NOT_FOUND, "%s: element %zu of tensor '%s' is in no shard", checkpoint->folder,
                   elem, tw_model_tensors(checkpoint->model, &n_tensors)[tensor].name);
}

static tw_status_t read_kind(tw_checkpoint_t *checkpoint, const tw_checkpoint_piece_t *piece, int kind)
{
    size_t done = 0;
    while (done < piece->n_elems) {
        size_t elem = piece->first + done;
        const tw_shard_range_t *range = find_range(checkpoint, kind, piece->tensor, elem);
        if (!range) {
            return nowhere(checkpoint, piece->tensor, elem);
        }
        TW_TRY(verify(checkpoint, range->rank));
        size_t skip = elem - range->first, left = piece->n_elems - done;
        size_t n = range->n_elems - skip < left ? range->n_elems - skip : left;
        memcpy(piece->values[kind] + done, (const char *)range->data + skip * sizeof(float),
               n * sizeof(float));
        done += n;
    }
    return TW_OK;
}

tw_status_t tw_checkpoint_read(tw_checkpoint_t *checkpoint, const tw_checkpoint_piece_t *pieces,
                               size_t n_pieces)
{
    tw_status_t status = TW_OK;
    for (size_t p = 0; p < n_pieces; p++) {
        for (int kind = 0; kind < TW_CHECKPOINT_KIND_COUNT && status == TW_OK; kind++) {
            status = pieces[p].values[kind] ? read_kind(checkpoint, &pieces[p], kind) : TW_OK;
        }
    }
    return status;
}
