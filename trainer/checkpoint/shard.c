/* Writes and reads a shard: a rank's file of a checkpoint. */
#include "trainer/checkpoint/shard.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 160 };

static const char *const kind_names[TW_CHECKPOINT_KIND_COUNT] = {"master", "m", "v"};

/* The tensors that a file's header lists. */
typedef struct listing {
    tw_safetensors_spec_t *specs;
    char (*names)[NAME_BYTES];
    size_t n;
} listing_t;

static tw_status_t check_piece(const char *path, const tw_model_t *model, const tw_checkpoint_piece_t *piece)
{
    size_t n_tensors;
    const tw_model_tensor_t *tensors = tw_model_tensors(model, &n_tensors);
    TW_FAIL_IF(piece->tensor >= n_tensors || piece->first > tensors[piece->tensor].n_elems ||
                   piece->n_elems > tensors[piece->tensor].n_elems - piece->first,
               TW_ERR_INVALID, "%s: elements %zu to %zu of tensor %zu are not the model's", path,
               piece->first, piece->first + piece->n_elems, piece->tensor);
    return TW_OK;
}

static void list_piece(listing_t *listing, const tw_model_t *model, const tw_checkpoint_piece_t *piece)
{
    size_t n_tensors;
    const tw_model_tensor_t *tensors = tw_model_tensors(model, &n_tensors);
    for (int kind = 0; kind < TW_CHECKPOINT_KIND_COUNT; kind++) {
        char *name = listing->names[listing->n];
        snprintf(name, NAME_BYTES, "%s/%s/%zu", kind_names[kind], tensors[piece->tensor].name, piece->first);
        listing->specs[listing->n++] = (tw_safetensors_spec_t){
            .name = name, .type = TW_TYPE_FP32, .n_dims = 1, .dims = {piece->n_elems}};
    }
}

/** Write values to the file. NULL stands for zeros. */
static tw_status_t write_values(tw_safetensors_writer_t *writer, const float *values, size_t n_elems)
{
    static const float zeros[1024];
    const size_t most = sizeof(zeros) / sizeof(zeros[0]);
    tw_status_t status =
        values ? tw_safetensors_writer_write(writer, values, n_elems * sizeof(float)) : TW_OK;
    for (size_t at = 0; at < n_elems && !values && status == TW_OK; at += most) {
        size_t n = n_elems - at < most ? n_elems - at : most;
        status = tw_safetensors_writer_write(writer, zeros, n * sizeof(float));
    }
    return status;
}

static tw_status_t write_pieces(tw_safetensors_writer_t *writer, const tw_checkpoint_piece_t *pieces,
                                size_t n_pieces)
{
    tw_status_t status = TW_OK;
    for (size_t p = 0; p < n_pieces; p++) {
        for (int kind = 0; kind < TW_CHECKPOINT_KIND_COUNT && status == TW_OK; kind++) {
            status = write_values(writer, pieces[p].values[kind], pieces[p].n_elems);
        }
    }
    return status;
}

static tw_status_t write_listed(const char *path, const tw_model_t *model, listing_t *listing,
                                const tw_checkpoint_piece_t *pieces, size_t n_pieces,
                                tw_safetensors_writer_t **out)
{
    for (size_t p = 0; p < n_pieces; p++) {
        TW_TRY(check_piece(path, model, &pieces[p]));
        if (pieces[p].n_elems > 0) {
            list_piece(listing, model, &pieces[p]);
        }
    }
    tw_safetensors_writer_t *writer;
    TW_TRY(tw_safetensors_writer_create(path, listing->specs, listing->n, NULL, &writer));
    tw_status_t status = write_pieces(writer, pieces, n_pieces);
    if (status != TW_OK) {
        tw_safetensors_writer_destroy(writer);
        return status;
    }
    *out = writer;
    return TW_OK;
}

tw_status_t tw_shard_write(const char *path, const tw_model_t *model, const tw_checkpoint_piece_t *pieces,
                           size_t n_pieces, tw_safetensors_writer_t **out)
{
    size_t most = n_pieces * TW_CHECKPOINT_KIND_COUNT + 1;
    listing_t listing = {.specs = calloc(most, sizeof(*listing.specs)),
                         .names = calloc(most, sizeof(*listing.names))};
    tw_status_t status = TW_ERR_NO_MEMORY;
    if (listing.specs && listing.names) {
        status = write_listed(path, model, &listing, pieces, n_pieces, out);
    } else {
        tw_error("%s: out of memory for its header", path);
    }
    free(listing.specs);
    free(listing.names);
    return status;
}

/** Split a name of the form "KIND/TENSOR/FIRST". Returns 1 if it has that form, else 0. */
static int split_name(const char *name, int *kind, char tensor[NAME_BYTES], size_t *first)
{
    const char *begin = strchr(name, '/'), *end = strrchr(name, '/');
    if (!begin || begin == end || end - begin > NAME_BYTES || end[1] < '0' || end[1] > '9') {
        return 0;
    }
    for (*kind = 0; *kind < TW_CHECKPOINT_KIND_COUNT; (*kind)++) {
        const char *kind_name = kind_names[*kind];
        if (strlen(kind_name) == (size_t)(begin - name) && strncmp(kind_name, name, strlen(kind_name)) == 0) {
            break;
        }
    }
    snprintf(tensor, NAME_BYTES, "%.*s", (int)(end - begin - 1), begin + 1);
    char *rest;
    errno = 0;
    *first = strtoull(end + 1, &rest, 10);
    return *kind < TW_CHECKPOINT_KIND_COUNT && *rest == '\0' && errno == 0;
}

static int find_tensor(const tw_model_t *model, const char *name, size_t *index)
{
    size_t n_tensors;
    const tw_model_tensor_t *tensors = tw_model_tensors(model, &n_tensors);
    for (*index = 0; *index < n_tensors; (*index)++) {
        if (strcmp(tensors[*index].name, name) == 0) {
            return 1;
        }
    }
    return 0;
}

static int shard_is_inside(const tw_model_t *model, const tw_shard_range_t *range)
{
    size_t n_tensors, n_elems = tw_model_tensors(model, &n_tensors)[range->tensor].n_elems;
    return range->first <= n_elems && range->n_elems <= n_elems - range->first;
}

tw_status_t tw_shard_range_of(const char *path, const tw_model_t *model,
                              const tw_safetensors_tensor_t *tensor, int rank, tw_shard_range_t *range)
{
    char name[NAME_BYTES];
    *range = (tw_shard_range_t){.n_elems = tensor->n_elems, .data = tensor->data, .rank = rank};
    TW_FAIL_IF(tensor->type != TW_TYPE_FP32 || !split_name(tensor->name, &range->kind, name, &range->first) ||
                   !find_tensor(model, name, &range->tensor) || !shard_is_inside(model, range),
               TW_ERR_FORMAT, "%s: tensor '%s' is no part of a checkpoint of this model", path, tensor->name);
    return TW_OK;
}
