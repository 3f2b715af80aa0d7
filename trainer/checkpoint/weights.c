/* Reads and writes the weights of whole models in safetensors files, with transformers' names. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <jansson.h>
#include <xxhash.h>

#include "quant/quant.h"
#include "safetensors/safetensors.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/files.h"
#include "trainer/checkpoint/model_config.h"
#include "trainer/input.h"

#define HEAD "lm_head.weight"

/* ---- reading ------------------------------------------------------------------------------------------- */

struct tw_weights {
    tw_safetensors_t **files; /* [n_files] */
    size_t n_files;
    const tw_safetensors_tensor_t **tensors; /* [n_tensors] in the order of the model's tensors */
    size_t n_tensors;
};

static const tw_safetensors_tensor_t *find_name(const tw_weights_t *weights, const char *name)
{
    const tw_safetensors_tensor_t *found = NULL;
    for (size_t i = 0; i < weights->n_files && !found; i++) {
        found = tw_safetensors_find(weights->files[i], name);
    }
    return found;
}

/** Find a tensor by its name. Models saved without a head lack the prefix "transformer." or "model.". */
static const tw_safetensors_tensor_t *find(const tw_weights_t *weights, const char *name)
{
    const tw_safetensors_tensor_t *found = find_name(weights, name);
    return found || strcmp(name, HEAD) == 0 ? found : find_name(weights, strchr(name, '.') + 1);
}

static tw_status_t check_tensor(const char *path, const tw_model_tensor_t *want,
                                const tw_safetensors_tensor_t *found)
{
    TW_FAIL_IF(!found, TW_ERR_MISMATCH, "%s: no tensor '%s'", path, want->name);
    int same = found->n_dims == want->n_dims;
    for (int d = 0; d < want->n_dims && same; d++) {
        same = found->dims[d] == want->shape[d];
    }
    TW_FAIL_IF(!same || found->type == TW_TYPE_BYTE, TW_ERR_MISMATCH,
               "%s: tensor '%s' of %s and %zu elements is not the model's: %zu x %zu", path, want->name,
               found->dtype, found->n_elems, want->shape[0], want->shape[1]);
    return TW_OK;
}

static tw_status_t weights_no_memory(const char *path)
{
    return tw_fail(TW_ERR_NO_MEMORY, "%s: out of memory", path);
}

static tw_status_t find_tensors(const char *path, const tw_model_t *model, tw_weights_t *weights)
{
    size_t n_tensors;
    const tw_model_tensor_t *tensors = tw_model_tensors(model, &n_tensors);
    weights->tensors = calloc(n_tensors, sizeof(const tw_safetensors_tensor_t *));
    if (!weights->tensors) {
        return weights_no_memory(path);
    }
    for (size_t t = 0; t < n_tensors; t++) {
        weights->tensors[t] = find(weights, tensors[t].name);
        TW_TRY(check_tensor(path, &tensors[t], weights->tensors[t]));
    }
    weights->n_tensors = n_tensors;
    return TW_OK;
}

/** Check lm_head. If the model's output layer is its embedding (tensor 0), lm_head must be a copy of that. */
static tw_status_t check_head(const char *path, const tw_model_t *model, const tw_weights_t *weights)
{
    size_t n_tensors, n_root = tw_model_unit_get(model, TW_MODEL_ROOT)->n_tensors;
    const tw_model_tensor_t *tensors = tw_model_tensors(model, &n_tensors);
    const tw_safetensors_tensor_t *head = find_name(weights, HEAD), *embedding = weights->tensors[0];
    if (!head || strcmp(tensors[n_root - 1].name, HEAD) == 0 ||
        (head->bytes == embedding->bytes && strcmp(head->dtype, embedding->dtype) == 0 &&
         memcmp(head->data, embedding->data, head->bytes) == 0)) {
        return TW_OK;
    }
    return tw_fail(TW_ERR_MISMATCH,
                   "%s: " HEAD " is not %s: this model's output layer has no weights of its own", path,
                   tensors[0].name);
}

/** Return 1 for tensors of published files that are no weights of their own: causal masks, rotary
 *  frequencies, and a copy of the embedding, which check_head has compared. */
static int is_no_weight(const char *name)
{
    static const char *const ends[] = {HEAD, ".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"};
    size_t length = strlen(name);
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        size_t n = strlen(ends[i]);
        if (length >= n && strcmp(name + length - n, ends[i]) == 0) {
            return 1;
        }
    }
    return 0;
}

static int is_taken(const tw_weights_t *weights, const tw_safetensors_tensor_t *tensor)
{
    for (size_t t = 0; t < weights->n_tensors; t++) {
        if (weights->tensors[t] == tensor) {
            return 1;
        }
    }
    return 0;
}

void tw_weights_say_left(const char *path, const tw_weights_t *weights)
{
    enum { MOST_NAMES = 6 };
    char names[1024] = "";
    size_t n_left = 0, used = 0;
    for (size_t i = 0; i < weights->n_files; i++) {
        const tw_safetensors_tensor_t *tensor;
        for (size_t t = 0; (tensor = tw_safetensors_get(weights->files[i], t)); t++) {
            if (is_no_weight(tensor->name) || is_taken(weights, tensor)) {
                continue;
            }
            if (n_left++ < MOST_NAMES && used < sizeof(names)) {
                used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%s", used > 0 ? ", " : "",
                                         tensor->name);
            }
        }
    }
    if (n_left > 0) {
        tw_warn("%s: %zu tensors are not taken, for this model has none of these names: %s%s", path, n_left,
                names, n_left > MOST_NAMES ? ", ..." : "");
    }
}

/* ---- which files --------------------------------------------------------------------------------------- */

static int is_file(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

static tw_status_t add_file(tw_weights_t *weights, const char *path)
{
    tw_safetensors_t **files = realloc(weights->files, (weights->n_files + 1) * sizeof(*files));
    if (!files) {
        return weights_no_memory(path);
    }
    weights->files = files;
    TW_TRY(tw_safetensors_open(path, &files[weights->n_files]));
    weights->n_files++;
    return TW_OK;
}

/** Open a file in the folder of the index, unless it is open already. */
static tw_status_t add_beside(tw_weights_t *weights, const char *index, const char *name, json_t *added)
{
    char path[TW_CHECKPOINT_PATH_BYTES];
    const char *slash = strrchr(index, '/');
    if (json_object_get(added, name)) {
        return TW_OK;
    }
    json_object_set_new(added, name, json_true());
    TW_TRY(tw_checkpoint_path(path, "%.*s%s", slash ? (int)(slash + 1 - index) : 0, index, name));
    return add_file(weights, path);
}

/** Open all files that the index's "weight_map" {"TENSOR": "FILE"} names. */
static tw_status_t add_mapped(tw_weights_t *weights, const char *index, json_t *map)
{
    const char *tensor;
    json_t *value, *added = json_object();
    tw_status_t status = added ? TW_OK : weights_no_memory(index);
    json_object_foreach(map, tensor, value)
    {
        const char *name = json_string_value(value);
        if (status == TW_OK && (!name || strchr(name, '/'))) {
            status = tw_fail(TW_ERR_FORMAT, "%s: tensor '%s' is in no file beside it", index, tensor);
        }
        status = status == TW_OK ? add_beside(weights, index, name, added) : status;
    }
    json_decref(added);
    return status;
}

static tw_status_t open_index(tw_weights_t *weights, const char *path)
{
    FILE *file;
    json_error_t error;
    TW_TRY(tw_input_open(path, &file));
    json_t *json = json_loadf(file, 0, &error);
    fclose(file);
    TW_FAIL_IF(!json, TW_ERR_FORMAT, "%s:%d:%d: %s", path, error.line, error.column, error.text);
    json_t *map = json_object_get(json, "weight_map");
    tw_status_t status = TW_ERR_FORMAT;
    if (json_is_object(map)) {
        status = add_mapped(weights, path, map);
    } else {
        tw_error("%s: no weight_map of tensors to files", path);
    }
    json_decref(json);
    return status;
}

/** Open a file of weights, or all files of an index. If `path` is a folder, open the file or index in it. */
static tw_status_t open_files(tw_weights_t *weights, const char *path)
{
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json"};
    char inside[TW_CHECKPOINT_PATH_BYTES];
    struct stat info;
    size_t length = strlen(path);
    if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode)) {
        int is_index = length > 5 && strcmp(path + length - 5, ".json") == 0;
        return is_index ? open_index(weights, path) : add_file(weights, path);
    }
    for (int i = 0; i < 2; i++) {
        TW_TRY(tw_checkpoint_path(inside, "%s/%s", path, names[i]));
        if (is_file(inside)) {
            return i == 0 ? add_file(weights, inside) : open_index(weights, inside);
        }
    }
    return tw_fail(TW_ERR_NOT_FOUND, "%s: neither %s nor %s is there", path, names[0], names[1]);
}

tw_status_t tw_weights_open(const char *path, const tw_model_t *model, tw_weights_t **out)
{
    tw_weights_t *weights = calloc(1, sizeof(*weights));
    if (!weights) {
        return weights_no_memory(path);
    }
    tw_status_t status = open_files(weights, path);
    status = status == TW_OK ? find_tensors(path, model, weights) : status;
    status = status == TW_OK ? check_head(path, model, weights) : status;
    if (status != TW_OK) {
        tw_weights_close(weights);
        return status;
    }
    *out = weights;
    return TW_OK;
}

void tw_weights_close(tw_weights_t *weights)
{
    if (weights) {
        for (size_t i = 0; i < weights->n_files; i++) {
            tw_safetensors_close(weights->files[i]);
        }
        free(weights->files);
        free(weights->tensors);
        free(weights);
    }
}

uint64_t tw_weights_checksum(const tw_weights_t *weights)
{
    enum { RUN_BYTES = 256, RUNS = 16 };
    uint64_t checksum = 0;
    for (size_t t = 0; t < weights->n_tensors; t++) {
        const tw_safetensors_tensor_t *of = weights->tensors[t];
        size_t n = of->bytes < RUN_BYTES ? of->bytes : RUN_BYTES, step = (of->bytes - n) / (RUNS - 1);
        for (size_t run = 0; run < RUNS; run++) {
            checksum = XXH3_64bits_withSeed((const char *)of->data + run * step, n, checksum);
        }
    }
    return checksum;
}

/** Data in a file may be unaligned, so they are copied to aligned memory first. */
void tw_weights_read(const tw_weights_t *weights, size_t tensor, size_t first, size_t n_elems, float *out)
{
    enum { PIECE = 1024 };
    const tw_safetensors_tensor_t *of = weights->tensors[tensor];
    size_t elem_bytes = tw_type_bytes(of->type);
    float aligned[PIECE];
    for (size_t done = 0; done < n_elems; done += PIECE) {
        size_t n = n_elems - done < PIECE ? n_elems - done : PIECE;
        memcpy(aligned, (const char *)of->data + (first + done) * elem_bytes, n * elem_bytes);
        tw_convert_to_fp32(of->type, aligned, out + done, n);
    }
}

/* ---- writing ------------------------------------------------------------------------------------------- */

static tw_status_t begin_file(const char *folder, const tw_model_t *model, tw_type_t type,
                              tw_safetensors_writer_t **writer)
{
    const char *const metadata[] = {"format", "pt", NULL};
    size_t n_tensors;
    const tw_model_tensor_t *tensors = tw_model_tensors(model, &n_tensors);
    char path[TW_CHECKPOINT_PATH_BYTES];
    tw_status_t status = tw_checkpoint_path(path, "%s/model.safetensors", folder);
    tw_safetensors_spec_t *specs = calloc(n_tensors, sizeof(*specs));
    if (status == TW_OK && !specs) {
        status = weights_no_memory(path);
    }
    for (size_t t = 0; t < n_tensors && status == TW_OK; t++) {
        specs[t] = (tw_safetensors_spec_t){.name = tensors[t].name,
                                           .type = type,
                                           .n_dims = tensors[t].n_dims,
                                           .dims = {tensors[t].shape[0], tensors[t].shape[1]}};
    }
    if (status == TW_OK) {
        status = tw_safetensors_writer_create(path, specs, n_tensors, metadata, writer);
    }
    free(specs);
    return status;
}

/** Write a whole tensor, PIECE elements at a time. */
static tw_status_t write_tensor(tw_checkpoint_t *checkpoint, size_t tensor, size_t n_elems, tw_type_t type,
                                tw_safetensors_writer_t *writer)
{
    enum { PIECE = 4096 };
    float wide[PIECE], narrow[PIECE];
    for (size_t first = 0; first < n_elems; first += PIECE) {
        size_t n = n_elems - first < PIECE ? n_elems - first : PIECE;
        tw_checkpoint_piece_t piece = {
            .tensor = tensor, .first = first, .n_elems = n, .values = {[TW_CHECKPOINT_MASTER] = wide}};
        tw_status_t status = tw_checkpoint_read(checkpoint, &piece, 1);
        if (status == TW_OK) {
            tw_convert_from_fp32(type, wide, 1.0f, narrow, n);
            status = tw_safetensors_writer_write(writer, narrow, n * tw_type_bytes(type));
        }
        if (status != TW_OK) {
            return status;
        }
    }
    return TW_OK;
}

static tw_status_t write_weights(tw_checkpoint_t *checkpoint, const tw_model_t *model, tw_type_t type,
                                 const char *folder)
{
    tw_safetensors_writer_t *writer;
    tw_status_t status = TW_OK;
    TW_TRY(begin_file(folder, model, type, &writer));
    size_t n_tensors;
    const tw_model_tensor_t *tensors = tw_model_tensors(model, &n_tensors);
    for (size_t t = 0; t < n_tensors && status == TW_OK; t++) {
        status = write_tensor(checkpoint, t, tensors[t].n_elems, type, writer);
    }
    if (status != TW_OK) {
        tw_safetensors_writer_destroy(writer);
        return status;
    }
    return tw_safetensors_writer_finish(writer);
}

tw_status_t tw_weights_export(tw_checkpoint_t *checkpoint, const tw_model_t *model, tw_type_t type,
                              const char *folder, const char *const *sources)
{
    tw_status_t status = tw_checkpoint_make_folder(folder);
    if (status == TW_OK) {
        status = tw_checkpoint_write_config(folder, tw_model_config_get(model), type, sources);
    }
    return status == TW_OK ? write_weights(checkpoint, model, type, folder) : status;
}
