/* Whole models in safetensors files, by Hugging Face's names. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "quant/quant.h"
#include "safetensors/safetensors.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/files.h"

#define PREFIX "transformer."

/* ---- reading --------------------------------------------------------------------------------------------- */

struct tw_weights {
    tw_safetensors_t *file;
    const tw_safetensors_tensor_t **tensors; /* [n_tensors of the model] */
};

/* Files of the bare model lack the prefix. */
static const tw_safetensors_tensor_t *find(const tw_safetensors_t *file, const char *name)
{
    const tw_safetensors_tensor_t *found = tw_safetensors_find(file, name);
    return found ? found : tw_safetensors_find(file, name + strlen(PREFIX));
}

static tw_status_t check_tensor(const char *path, const tw_model_tensor_t *want,
                                const tw_safetensors_tensor_t *found)
{
    if (!found) {
        tw_error("%s: no tensor '%s'", path, want->name);
        return TW_ERR_MISMATCH;
    }
    int same = found->n_dims == want->n_dims;
    for (int d = 0; d < want->n_dims && same; d++) {
        same = found->dims[d] == want->shape[d];
    }
    if (!same || found->type == TW_TYPE_BYTE) {
        tw_error("%s: tensor '%s' of %s and %zu elements is not the model's: %zu x %zu", path, want->name,
                 found->dtype, found->n_elems, want->shape[0], want->shape[1]);
        return TW_ERR_MISMATCH;
    }
    return TW_OK;
}

static tw_status_t find_tensors(const char *path, const tw_model_t *model, tw_weights_t *weights)
{
    size_t n_tensors;
    const tw_model_tensor_t *tensors = tw_model_tensors(model, &n_tensors);
    weights->tensors = calloc(n_tensors, sizeof(const tw_safetensors_tensor_t *));
    if (!weights->tensors) {
        tw_error("%s: out of memory", path);
        return TW_ERR_NO_MEMORY;
    }
    for (size_t t = 0; t < n_tensors; t++) {
        weights->tensors[t] = find(weights->file, tensors[t].name);
        TW_TRY(check_tensor(path, &tensors[t], weights->tensors[t]));
    }
    return TW_OK;
}

tw_status_t tw_weights_open(const char *path, const tw_model_t *model, tw_weights_t **out)
{
    tw_weights_t *weights = calloc(1, sizeof(*weights));
    if (!weights) {
        tw_error("%s: out of memory", path);
        return TW_ERR_NO_MEMORY;
    }
    tw_status_t status = tw_safetensors_open(path, &weights->file);
    if (status == TW_OK) {
        status = find_tensors(path, model, weights);
    }
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
        tw_safetensors_close(weights->file);
        free(weights->tensors);
        free(weights);
    }
}

/* In pieces through aligned memory: data in a file lie as they come. */
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

/* ---- writing --------------------------------------------------------------------------------------------- */

static tw_status_t write_config(const char *folder, const tw_model_config_t *config, tw_type_t type)
{
    char path[TW_CHECKPOINT_PATH_BYTES];
    TW_TRY(tw_checkpoint_path(path, "%s/config.json", folder));
    json_t *json = json_pack(
        "{s:[s], s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:f, s:b, s:s}", "architectures", "GPT2LMHeadModel",
        "model_type", "gpt2", "activation_function", "gelu_new", "vocab_size", (json_int_t)config->vocab_size,
        "n_positions", (json_int_t)config->n_positions, "n_embd", (json_int_t)config->n_embd, "n_layer",
        (json_int_t)config->n_layer, "n_head", (json_int_t)config->n_head, "layer_norm_epsilon",
        config->layer_norm_epsilon, "tie_word_embeddings", 1, "torch_dtype",
        type == TW_TYPE_BF16   ? "bfloat16"
        : type == TW_TYPE_FP16 ? "float16"
                               : "float32");
    int failed = !json || json_dump_file(json, path, JSON_INDENT(2)) != 0;
    json_decref(json);
    if (failed) {
        tw_error("%s: cannot write it: %s", path, strerror(errno));
        return TW_ERR_IO;
    }
    return TW_OK;
}

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
        tw_error("%s: out of memory", path);
        status = TW_ERR_NO_MEMORY;
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

/* All of a tensor, some elements at a time. */
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
    tw_status_t status = begin_file(folder, model, type, &writer);
    if (status != TW_OK) {
        return status;
    }
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
                              const char *folder)
{
    tw_status_t status = tw_checkpoint_make_folder(folder);
    if (status == TW_OK) {
        status = write_config(folder, tw_model_config_get(model), type);
    }
    return status == TW_OK ? write_weights(checkpoint, model, type, folder) : status;
}
