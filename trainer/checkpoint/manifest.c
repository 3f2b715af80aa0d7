/* Reads and writes manifest.json. */
#include "trainer/checkpoint/manifest.h"
#include "trainer/input.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>
#include <xxhash.h>

#define FORMAT 1
#define MAX_RANKS (1 << 20)

static void format_checksum(uint64_t checksum, char text[17])
{
    snprintf(text, 17, "%016" PRIx64, checksum);
}

/** Return the checksum of the body as text. It is 0 if memory runs out: then writing the body fails, too. */
static uint64_t body_checksum(const json_t *body)
{
    char *text = json_dumps(body, JSON_COMPACT | JSON_SORT_KEYS);
    uint64_t checksum = text ? XXH3_64bits(text, strlen(text)) : 0;
    free(text);
    return checksum;
}

static json_t *tensor_list(const tw_model_t *model)
{
    size_t n_tensors;
    const tw_model_tensor_t *tensors = tw_model_tensors(model, &n_tensors);
    json_t *list = json_array();
    for (size_t t = 0; t < n_tensors; t++) {
        json_array_append_new(list, json_pack("{s:s, s:I}", "name", tensors[t].name, "n_elems",
                                              (json_int_t)tensors[t].n_elems));
    }
    return list;
}

static json_t *shard_list(const tw_manifest_t *manifest)
{
    json_t *list = json_array();
    for (int rank = 0; rank < manifest->run.world; rank++) {
        char checksum[17];
        format_checksum(manifest->shards[rank].checksum, checksum);
        json_array_append_new(list, json_pack("{s:I, s:s}", "bytes", (json_int_t)manifest->shards[rank].bytes,
                                              "xxh3", checksum));
    }
    return list;
}

/* C types of the values in a model's shape: size_t, double, and int or enum */
typedef enum value_type { COUNT, REAL, NUMBER } value_type_t;
/* The keys of a model's shape. They are written even if the sizes of tensors imply them. */
static const struct {
    const char *key;
    size_t offset;
    value_type_t type;
    int is_llama; /* 1: only Llama models have this key */
} shape[] = {
    {"vocab_size", offsetof(tw_model_config_t, vocab_size), COUNT, 0},
    {"n_positions", offsetof(tw_model_config_t, n_positions), COUNT, 0},
    {"n_layer", offsetof(tw_model_config_t, n_layer), COUNT, 0},
    {"n_head", offsetof(tw_model_config_t, n_head), COUNT, 0},
    {"n_embd", offsetof(tw_model_config_t, n_embd), COUNT, 0},
    {"layer_norm_epsilon", offsetof(tw_model_config_t, layer_norm_epsilon), REAL, 0},
    {"n_kv_head", offsetof(tw_model_config_t, llama.n_kv_head), COUNT, 1},
    {"head_dim", offsetof(tw_model_config_t, llama.head_dim), COUNT, 1},
    {"n_inner", offsetof(tw_model_config_t, llama.n_inner), COUNT, 1},
    {"rope_theta", offsetof(tw_model_config_t, llama.rope.theta), REAL, 1},
    {"rope_scaling.rope_type", offsetof(tw_model_config_t, llama.rope.type), NUMBER, 1},
    {"rope_scaling.factor", offsetof(tw_model_config_t, llama.rope.factor), REAL, 1},
    {"rope_scaling.original_max_position_embeddings", offsetof(tw_model_config_t, llama.rope.n_positions),
     COUNT, 1},
    {"rope_scaling.low_freq_factor", offsetof(tw_model_config_t, llama.rope.low_freq_factor), REAL, 1},
    {"rope_scaling.high_freq_factor", offsetof(tw_model_config_t, llama.rope.high_freq_factor), REAL, 1},
    {"rope_scaling.beta_fast", offsetof(tw_model_config_t, llama.rope.beta_fast), REAL, 1},
    {"rope_scaling.beta_slow", offsetof(tw_model_config_t, llama.rope.beta_slow), REAL, 1},
    {"rope_scaling.attention_factor", offsetof(tw_model_config_t, llama.rope.attention_factor), REAL, 1},
    {"sliding_window", offsetof(tw_model_config_t, llama.window), COUNT, 1},
    {"max_window_layers", offsetof(tw_model_config_t, llama.window_from_layer), COUNT, 1},
    {"attention_bias", offsetof(tw_model_config_t, llama.attention_bias), NUMBER, 1},
};
#define N_SHAPE (sizeof(shape) / sizeof(shape[0]))
#define FAMILY "family" /* missing in files of older programs, which had only GPT-2 */

static int has_key(const tw_model_config_t *config, size_t i)
{
    return !shape[i].is_llama || tw_model_family_get(config->family)->kind == TW_MODEL_KIND_LLAMA;
}

/** Return value i of the shape as a double. Counts are small enough to be exact. */
static double shape_value(const tw_model_config_t *config, size_t i)
{
    const void *at = (const char *)config + shape[i].offset;
    switch (shape[i].type) {
    case COUNT:
        return (double)*(const size_t *)at;
    case REAL:
        return *(const double *)at;
    default:
        return *(const int *)at;
    }
}

static json_t *model_json(const tw_model_t *model)
{
    const tw_model_config_t *config = tw_model_config_get(model);
    json_t *json = json_object();
    json_object_set_new(json, FAMILY, json_string(tw_model_family_name(config->family)));
    for (size_t i = 0; i < N_SHAPE; i++) {
        if (has_key(config, i)) {
            double value = shape_value(config, i);
            json_object_set_new(json, shape[i].key,
                                shape[i].type == REAL ? json_real(value) : json_integer((json_int_t)value));
        }
    }
    return json;
}

static json_t *facts_json(const char *facts)
{
    tw_line_t line;
    json_t *json = json_object();
    while (tw_lines_next(&facts, &line)) {
        json_object_set_new(json, line.name, json_string(line.value));
    }
    return json;
}

static json_t *history_json(const tw_checkpoint_run_t *run)
{
    json_t *list = json_array();
    for (size_t i = 0; i < run->n_history; i++) {
        json_array_append_new(list, json_real(run->history[i]));
    }
    return list;
}

static json_t *manifest_json(const tw_manifest_t *manifest, const tw_model_t *model)
{
    const tw_checkpoint_run_t *run = &manifest->run;
    char text[17];
    format_checksum(run->id, text);
    json_t *body =
        json_pack("{s:i, s:I, s:I, s:I, s:I, s:i, s:s, s:f, s:f, s:I, s:o, s:o, s:o, s:o, s:o}", "format",
                  FORMAT, "step", (json_int_t)run->step, "seed", (json_int_t)run->seed, "batch",
                  (json_int_t)run->batch, "seq_len", (json_int_t)run->seq_len, "n_ranks", run->world, "run",
                  text, "recent_loss", run->recent_loss, "best_val", run->best_val, "passed_over",
                  (json_int_t)run->passed_over, "history", history_json(run), "facts", facts_json(run->facts),
                  "model", model_json(model), "tensors", tensor_list(model), "shards", shard_list(manifest));
    if (!body) {
        return NULL;
    }
    format_checksum(body_checksum(body), text);
    return json_pack("{s:o, s:s}", "body", body, "xxh3", text);
}

tw_status_t tw_manifest_write(const char *path, const tw_manifest_t *manifest, const tw_model_t *model)
{
    json_t *json = manifest_json(manifest, model);
    TW_FAIL_IF(!json, TW_ERR_NO_MEMORY, "%s: out of memory", path);
    FILE *file = fopen(path, "we");
    int failed =
        !file || json_dumpf(json, file, JSON_INDENT(1)) != 0 || fflush(file) != 0 || fsync(fileno(file)) != 0;
    int error = errno;
    failed |= file && fclose(file) != 0;
    json_decref(json);
    return failed ? tw_fail(TW_ERR_IO, "%s: cannot write it: %s", path, strerror(error)) : TW_OK;
}

static tw_status_t damaged(const char *path, const char *what)
{
    return tw_fail(TW_ERR_FORMAT, "%s: damaged: %s", path, what);
}

static tw_status_t check_tensors(const char *path, const json_t *list, const tw_model_t *model)
{
    size_t n_tensors;
    const tw_model_tensor_t *tensors = tw_model_tensors(model, &n_tensors);
    TW_FAIL_IF(json_array_size(list) != n_tensors, TW_ERR_MISMATCH,
               "%s: of another model: %zu tensors, not %zu", path, json_array_size(list), n_tensors);
    for (size_t t = 0; t < n_tensors; t++) {
        const json_t *entry = json_array_get(list, t);
        const char *name = json_string_value(json_object_get(entry, "name"));
        json_int_t n_elems = json_integer_value(json_object_get(entry, "n_elems"));
        TW_FAIL_IF(!name || strcmp(name, tensors[t].name) != 0 || (size_t)n_elems != tensors[t].n_elems,
                   TW_ERR_MISMATCH,
                   "%s: of another model: tensor %zu is '%s' of %lld elements, not '%s' of %zu", path, t,
                   name ? name : "", (long long)n_elems, tensors[t].name, tensors[t].n_elems);
    }
    return TW_OK;
}

static tw_status_t another_model(const char *path, const char *key, const json_t *was, double is)
{
    return tw_fail(TW_ERR_MISMATCH,
                   "%s: of another model: model.%s was %.15g when it was saved, and is %.15g now", path, key,
                   json_number_value(was), is);
}

static tw_status_t check_family(const char *path, const json_t *json, const tw_model_config_t *config)
{
    const char *was = json_string_value(json_object_get(json, FAMILY));
    const char *is = tw_model_family_name(config->family);
    TW_FAIL_IF(json && strcmp(was ? was : "gpt2", is) != 0, TW_ERR_MISMATCH,
               "%s: of another model: model.family was %s when it was saved, and is %s now", path,
               was ? was : "gpt2", is);
    return TW_OK;
}

/** Compare the model's shape with the manifest's. Sizes of tensors alone would not show every difference. */
static tw_status_t manifest_check_model(const char *path, const json_t *json, const tw_model_t *model)
{
    const tw_model_config_t *config = tw_model_config_get(model);
    TW_TRY(check_family(path, json, config));
    for (size_t i = 0; i < N_SHAPE; i++) {
        const json_t *was = json_object_get(json, shape[i].key);
        double is = shape_value(config, i);
        if (was && has_key(config, i) && json_number_value(was) != is) {
            return another_model(path, shape[i].key, was, is);
        }
    }
    return TW_OK;
}

/** Read 16 hexadecimal digits; *value is 0 if json is NULL. Returns 0, or -1 if the text is malformed. */
static int read_hex(const json_t *json, uint64_t *value)
{
    const char *text = json_string_value(json);
    *value = 0;
    if (!json) {
        return 0;
    }
    if (!text || strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16) {
        return -1;
    }
    *value = strtoull(text, NULL, 16);
    return 0;
}

static tw_status_t read_history(const char *path, const json_t *list, tw_manifest_t *manifest)
{
    size_t n = json_array_size(list);
    manifest->history = calloc(n + 1, sizeof(*manifest->history));
    TW_FAIL_IF(!manifest->history, TW_ERR_NO_MEMORY, "%s: out of memory", path);
    for (size_t i = 0; i < n; i++) {
        if (!json_is_real(json_array_get(list, i))) {
            return damaged(path, "the losses and norms before it");
        }
        manifest->history[i] = json_real_value(json_array_get(list, i));
    }
    manifest->run.history = manifest->history;
    manifest->run.n_history = n;
    return TW_OK;
}

/** Read the facts of the run that may be missing, since older programs did not write them. */
static tw_status_t read_run(const char *path, json_t *body, tw_manifest_t *manifest)
{
    const char *name;
    json_t *value, *facts = json_object_get(body, "facts");
    if (read_hex(json_object_get(body, "run"), &manifest->run.id) != 0) {
        return damaged(path, "the run's id");
    }
    manifest->run.recent_loss = json_number_value(json_object_get(body, "recent_loss"));
    manifest->run.best_val = json_number_value(json_object_get(body, "best_val"));
    json_int_t passed_over = json_integer_value(json_object_get(body, "passed_over"));
    if (passed_over < 0) {
        return damaged(path, "a number out of its range");
    }
    manifest->run.passed_over = (uint64_t)passed_over;
    TW_TRY(read_history(path, json_object_get(body, "history"), manifest));
    json_object_foreach(facts, name, value)
    {
        if (!json_is_string(value) || strpbrk(name, "=\n")) {
            return damaged(path, "what the run was trained with");
        }
        tw_lines_add(&manifest->facts, name, "%s", json_string_value(value));
    }
    TW_FAIL_IF(manifest->facts.failed, TW_ERR_NO_MEMORY, "%s: out of memory", path);
    manifest->run.facts = manifest->facts.text;
    return TW_OK;
}

static tw_status_t read_shards(const char *path, const json_t *list, tw_manifest_t *manifest)
{
    size_t world = json_array_size(list);
    if (world < 1 || world > MAX_RANKS || (int)world != manifest->run.world) {
        return damaged(path, "the number of shards");
    }
    manifest->shards = calloc(world, sizeof(*manifest->shards));
    TW_FAIL_IF(!manifest->shards, TW_ERR_NO_MEMORY, "%s: out of memory", path);
    for (size_t rank = 0; rank < world; rank++) {
        const json_t *entry = json_array_get(list, rank);
        const char *checksum = json_string_value(json_object_get(entry, "xxh3"));
        json_int_t bytes = json_integer_value(json_object_get(entry, "bytes"));
        if (!checksum || strlen(checksum) != 16 || strspn(checksum, "0123456789abcdef") != 16 || bytes < 1) {
            return damaged(path, "a shard without its bytes or a checksum");
        }
        manifest->shards[rank].bytes = (uint64_t)bytes;
        manifest->shards[rank].checksum = strtoull(checksum, NULL, 16);
    }
    return TW_OK;
}

static tw_status_t read_body(const char *path, json_t *body, const tw_model_t *model, tw_manifest_t *manifest)
{
    json_error_t error;
    int format;
    json_int_t step, seed, batch, seq_len;
    if (json_unpack_ex(body, &error, 0, "{s:i, s:I, s:I, s:I, s:I, s:i}", "format", &format, "step", &step,
                       "seed", &seed, "batch", &batch, "seq_len", &seq_len, "n_ranks",
                       &manifest->run.world) != 0) {
        return damaged(path, error.text);
    }
    TW_FAIL_IF(format != FORMAT, TW_ERR_FORMAT, "%s: format %d; this reads format %d", path, format, FORMAT);
    if (step < 0 || seed < 0 || batch < 0 || seq_len < 0) {
        return damaged(path, "a number out of its range");
    }
    manifest->run.step = (uint64_t)step;
    manifest->run.seed = (uint64_t)seed;
    manifest->run.batch = (uint64_t)batch;
    manifest->run.seq_len = (uint64_t)seq_len;
    TW_TRY(manifest_check_model(path, json_object_get(body, "model"), model));
    TW_TRY(read_run(path, body, manifest));
    tw_status_t status = check_tensors(path, json_object_get(body, "tensors"), model);
    return status == TW_OK ? read_shards(path, json_object_get(body, "shards"), manifest) : status;
}

/** Return 1 if the checksum of the body is the one in the manifest. */
static int is_as_written(const json_t *json)
{
    const json_t *body = json_object_get(json, "body");
    const char *stored = json_string_value(json_object_get(json, "xxh3"));
    char checksum[17];
    format_checksum(body_checksum(body), checksum);
    return json_is_object(body) && stored && strcmp(checksum, stored) == 0;
}

static tw_status_t read_json(const char *path, json_t *json, const tw_model_t *model, tw_manifest_t *manifest)
{
    json_t *body = json_object_get(json, "body");
    if (!json_is_object(body) || !json_is_string(json_object_get(json, "xxh3"))) {
        return damaged(path, "no body with a checksum");
    }
    if (!is_as_written(json)) {
        return damaged(path, "its checksum is another");
    }
    (void)read_hex(json_object_get(json, "xxh3"), &manifest->run.checksum);
    return read_body(path, body, model, manifest);
}

tw_status_t tw_manifest_read(const char *path, const tw_model_t *model, tw_manifest_t *manifest)
{
    *manifest = (tw_manifest_t){0};
    if (access(path, R_OK) != 0) {
        return tw_input_failed(path, "read it");
    }
    json_error_t error;
    json_t *json = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (!json) {
        return damaged(path, error.text);
    }
    tw_status_t status = read_json(path, json, model, manifest);
    json_decref(json);
    if (status != TW_OK) {
        tw_manifest_cleanup(manifest);
    }
    return status;
}

int tw_manifest_run_id(const char *path, uint64_t *id)
{
    json_t *json = json_load_file(path, JSON_REJECT_DUPLICATES, NULL), *body = json_object_get(json, "body");
    int is_whole = is_as_written(json) && read_hex(json_object_get(body, "run"), id) == 0;
    *id = is_whole ? *id : 0;
    json_decref(json);
    return is_whole;
}

void tw_manifest_cleanup(tw_manifest_t *manifest)
{
    free(manifest->shards);
    free(manifest->history);
    tw_lines_cleanup(&manifest->facts);
    *manifest = (tw_manifest_t){0};
}
