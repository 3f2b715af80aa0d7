/* Reads cases from a JSON file. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "trainer/plan/case.h"

/* The place of a value in the file, for messages. */
typedef struct place {
    const char *path;
    char where[128]; /* "cases[3]." */
} place_t;

/* A point with its rate in the unit in which it was published. */
typedef struct raw_point {
    tw_plan_point_t point;
    double gpu_tokens_per_sec, samples_per_sec;
} raw_point_t;

static const char *const algorithms[] = {"ring", "tree", "hierarchical", NULL};
static const char *const shardings[] = {"full", "node", "none", NULL};

#define CASE(member) offsetof(tw_plan_case_t, member)
#define POINT(member) offsetof(raw_point_t, member)
#define MOST 1e18
#define NEEDED NULL /* no default: the key must be there */
#define A_PART NULL /* the doc of an object or a list, which read_case reads */

static const tw_config_field_t case_keys[] = {
    {"name", NEEDED, "", "", TW_CONFIG_STRING, CASE(name), 0, 0, NULL},
    {"source", "", "", "", TW_CONFIG_STRING, CASE(source), 0, 0, NULL},
    {"note", "", "", "", TW_CONFIG_STRING, CASE(note), 0, 0, NULL},
    {"params", "", "", "", TW_CONFIG_DOUBLE, CASE(n_params), 1, 1e15, NULL},
    {"active_params", "", "", "", TW_CONFIG_DOUBLE, CASE(n_active), 1, 1e15, NULL},
    {"layers", "", "", "", TW_CONFIG_INT32, CASE(n_layers), 1, 10000, NULL},
    {"nodes", "", "", "", TW_CONFIG_INT32, CASE(n_nodes), 1, 10000, NULL},
    {"gpus_per_node", NEEDED, "", "", TW_CONFIG_INT32, CASE(gpus_per_node), 1, 1000, NULL},
    {"link_bytes_per_sec", NEEDED, "", "", TW_CONFIG_DOUBLE, CASE(link_Bps), 1, MOST, NULL},
    {"in_node_bytes_per_sec", "", "", "", TW_CONFIG_DOUBLE, CASE(in_node_Bps), 1, MOST, NULL},
    {"link_latency_sec", "", "", "", TW_CONFIG_DOUBLE, CASE(link_latency_sec), 0, 1, NULL},
    {"in_node_latency_sec", "", "", "", TW_CONFIG_DOUBLE, CASE(in_latency_sec), 0, 1, NULL},
    {"algorithm", "", "", "", TW_CONFIG_ENUM, CASE(algorithm), 0, 0, algorithms},
    {"sharding", "", "", "", TW_CONFIG_ENUM, CASE(sharding), 0, 0, shardings},
    {"recompute", "", "", "", TW_CONFIG_BOOL, CASE(recompute), 0, 0, NULL},
    {"reshard_after_forward", "", "", "", TW_CONFIG_BOOL, CASE(reshard), 0, 0, NULL},
    {"regathered_params", "", "", "", TW_CONFIG_DOUBLE, CASE(regathered_params), 0, 1e15, NULL},
    {"gradient_bytes", "", "", "", TW_CONFIG_DOUBLE, CASE(gradient_bytes), 0.01, 8, NULL},
    {"micro_batch", "", "", "", TW_CONFIG_DOUBLE, CASE(micro_batch), 1, 1e6, NULL},
    {"accumulation", "", "", "", TW_CONFIG_INT32, CASE(accumulation), 1, 1e4, NULL},
    {"sequence", "", "", "", TW_CONFIG_DOUBLE, CASE(sequence), 1, 1e8, NULL},
    {"flops", "", "", "", TW_CONFIG_DOUBLE, CASE(flops), 1, 1e18, NULL},
    {"peak_flops", "", "", "", TW_CONFIG_DOUBLE, CASE(peak_flops), 1, 1e18, NULL},
    {"mfu", "", "", "", TW_CONFIG_DOUBLE, CASE(mfu), 1e-6, 1, NULL},
    {"gpu_memory_bytes_per_sec", "", "", "", TW_CONFIG_DOUBLE, CASE(codec_memory_Bps), 1, MOST, NULL},
    {"gpu_memory_bytes", "", "", "", TW_CONFIG_DOUBLE, CASE(gpu_memory_bytes), 1, MOST, NULL},
    {"codec_bytes_per_sec", "", "", A_PART, TW_CONFIG_STRING, 0, 0, 0, NULL},
    {"fitted", "", "", A_PART, TW_CONFIG_STRING, 0, 0, 0, NULL},
    {"measured", "", "", A_PART, TW_CONFIG_STRING, 0, 0, 0, NULL},
};

static const tw_config_field_t point_keys[] = {
    {"nodes", NEEDED, "", "", TW_CONFIG_INT32, POINT(point.n_nodes), 1, 10000, NULL},
    {"micro_batch", "", "", "", TW_CONFIG_DOUBLE, POINT(point.micro_batch), 1, 1e6, NULL},
    {"accumulation", "", "", "", TW_CONFIG_INT32, POINT(point.accumulation), 1, 1e4, NULL},
    {"tokens_per_sec", "", "", "", TW_CONFIG_DOUBLE, POINT(point.tokens_per_sec), 1e-9, MOST, NULL},
    {"tokens_per_sec_per_gpu", "", "", "", TW_CONFIG_DOUBLE, POINT(gpu_tokens_per_sec), 1e-9, MOST, NULL},
    {"samples_per_sec", "", "", "", TW_CONFIG_DOUBLE, POINT(samples_per_sec), 1e-9, MOST, NULL},
    {"link_bytes_per_sec", "", "", "", TW_CONFIG_DOUBLE, POINT(point.link_Bps), 1, MOST, NULL},
    {"why", "", "", "", TW_CONFIG_STRING, POINT(point.why), 0, 0, NULL},
};

/* Rates of codecs in plain bytes a second. Encoding and decoding have the same rate. */
static const tw_config_field_t codec_keys[] = {
    {"int8", "", "", "", TW_CONFIG_DOUBLE, CASE(codec_Bps[TW_QUANT_INT8]), 1, MOST, NULL},
    {"int4", "", "", "", TW_CONFIG_DOUBLE, CASE(codec_Bps[TW_QUANT_INT4]), 1, MOST, NULL},
    {"int2", "", "", "", TW_CONFIG_DOUBLE, CASE(codec_Bps[TW_QUANT_INT2]), 1, MOST, NULL},
    {"fp8", "", "", "", TW_CONFIG_DOUBLE, CASE(codec_Bps[TW_QUANT_FP8]), 1, MOST, NULL},
    {"delta", "", "", "", TW_CONFIG_DOUBLE, CASE(codec_Bps[TW_QUANT_DELTA]), 1, MOST, NULL},
    {"lossless", "", "", "", TW_CONFIG_DOUBLE, CASE(codec_Bps[TW_QUANT_LOSSLESS]), 1, MOST, NULL},
    {"ecdq", "", "", "", TW_CONFIG_DOUBLE, CASE(codec_Bps[TW_QUANT_ECDQ]), 1, MOST, NULL},
};

#define N_CODEC_KEYS (sizeof(codec_keys) / sizeof(codec_keys[0]))
#define N_CASE_KEYS (sizeof(case_keys) / sizeof(case_keys[0]))
#define N_POINT_KEYS (sizeof(point_keys) / sizeof(point_keys[0]))

/* ---- values -------------------------------------------------------------------------------------------- */

static tw_status_t unlike(const place_t *place, const char *key, const char *what)
{
    return tw_fail(TW_ERR_FORMAT, "%s: %s%s: must be %s", place->path, place->where, key, what);
}

static int is_of_type(tw_config_type_t type, const json_t *value)
{
    return type == TW_CONFIG_BOOL                               ? json_is_boolean(value)
           : type == TW_CONFIG_STRING || type == TW_CONFIG_ENUM ? json_is_string(value)
                                                                : json_is_number(value);
}

/** Store a value. Texts are borrowed from the JSON. */
static tw_status_t take_value(const place_t *place, const tw_config_field_t *key, const json_t *value,
                              void *out)
{
    char number[32], what[128];
    const char *text = json_is_boolean(value) ? (json_is_true(value) ? "y" : "n") : json_string_value(value);
    if (json_is_number(value)) {
        snprintf(number, sizeof(number), "%.17g", json_number_value(value));
        text = number;
    }
    if (is_of_type(key->type, value) && key->type == TW_CONFIG_STRING) {
        *(const char **)((char *)out + key->offset) = text;
    } else if (!is_of_type(key->type, value) || tw_config_parse(key, out, text) != TW_OK) {
        tw_config_describe(key, what, sizeof(what));
        return unlike(place, key->name, key->type == TW_CONFIG_BOOL ? "true or false" : what);
    }
    return TW_OK;
}

/** Find a key's field. If there is no such key, logs that and returns NULL. */
static const tw_config_field_t *find_key(const place_t *place, const tw_config_field_t *keys, size_t n_keys,
                                         const char *name)
{
    const char *names[N_CASE_KEYS];
    for (size_t i = 0; i < n_keys; i++) {
        names[i] = keys[i].name;
        if (strcmp(names[i], name) == 0) {
            return &keys[i];
        }
    }
    const char *near = tw_nearest_name(name, names, n_keys);
    return tw_fail(NULL, "%s: %s%s: unknown key%s%s", place->path, place->where, name,
                   near ? "; did you mean " : "", near ? near : "");
}

static tw_status_t take_object(const place_t *place, const tw_config_field_t *keys, size_t n_keys,
                               json_t *json, void *out)
{
    const char *name;
    json_t *value;
    if (!json_is_object(json)) {
        return unlike(place, "", "an object");
    }
    json_object_foreach(json, name, value)
    {
        const tw_config_field_t *key = find_key(place, keys, n_keys, name);
        if (!key || key->doc) {
            TW_TRY(key ? take_value(place, key, value, out) : TW_ERR_FORMAT);
        }
    }
    for (size_t i = 0; i < n_keys; i++) {
        if (!keys[i].dflt && !json_object_get(json, keys[i].name)) {
            return unlike(place, keys[i].name, "there");
        }
    }
    return TW_OK;
}

/* ---- points -------------------------------------------------------------------------------------------- */

/** Convert a published rate of any of the three units to tokens a second of all GPUs. */
static tw_status_t case_take_rate(const place_t *place, const tw_plan_case_t *given, const raw_point_t *raw,
                                  tw_plan_point_t *point)
{
    int n_rates =
        (point->tokens_per_sec > 0.0) + (raw->gpu_tokens_per_sec > 0.0) + (raw->samples_per_sec > 0.0);
    if (n_rates != 1) {
        return unlike(place, "tokens_per_sec", "there, or tokens_per_sec_per_gpu or samples_per_sec instead");
    }
    point->tokens_per_sec += raw->gpu_tokens_per_sec * point->n_nodes * given->gpus_per_node;
    point->tokens_per_sec += raw->samples_per_sec * given->sequence;
    return TW_OK;
}

/** Read a point. Keys that it lacks have the case's values. */
static tw_status_t read_point(const place_t *place, const tw_plan_case_t *given, json_t *json,
                              tw_plan_point_t *point)
{
    raw_point_t raw = {.point = {.micro_batch = given->micro_batch,
                                 .accumulation = given->accumulation,
                                 .link_Bps = given->link_Bps}};
    TW_TRY(take_object(place, point_keys, N_POINT_KEYS, json, &raw));
    *point = raw.point;
    return case_take_rate(place, given, &raw, point);
}

static tw_status_t read_points(const place_t *place, const json_t *list, tw_plan_case_t *given)
{
    if (list && !json_is_array(list)) {
        return unlike(place, "measured", "a list");
    }
    given->n_points = json_array_size(list);
    given->points = calloc(given->n_points + 1, sizeof(*given->points));
    TW_FAIL_IF(!given->points, TW_ERR_NO_MEMORY, "plan: out of memory");
    for (size_t i = 0; i < given->n_points; i++) {
        place_t inner = {.path = place->path};
        snprintf(inner.where, sizeof(inner.where), "%.40smeasured[%zu].", place->where, i);
        TW_TRY(read_point(&inner, given, json_array_get(list, i), &given->points[i]));
    }
    return TW_OK;
}

/* ---- cases --------------------------------------------------------------------------------------------- */

static tw_status_t check_case(const place_t *place, tw_plan_case_t *given)
{
    if (given->n_params <= 0.0 || given->n_layers <= 0) {
        return unlike(place, given->n_params <= 0.0 ? "params" : "layers",
                      "there, or --model or --params given");
    }
    if (given->in_node_Bps <= 0.0 || given->micro_batch <= 0.0 || given->sequence <= 0.0) {
        return unlike(place,
                      given->in_node_Bps <= 0.0   ? "in_node_bytes_per_sec"
                      : given->micro_batch <= 0.0 ? "micro_batch"
                                                  : "sequence",
                      "there");
    }
    if (given->fitted.n_nodes == 0 && given->flops <= 0.0 &&
        (given->mfu <= 0.0 || given->peak_flops <= 0.0)) {
        return unlike(place, "fitted", "there, or flops, or mfu and peak_flops, or --device-flops given");
    }
    if (given->n_nodes == 0 && given->n_points == 0) {
        return unlike(place, "nodes", "there, or measured");
    }
    given->n_active = given->n_active > 0.0 ? given->n_active : given->n_params;
    return TW_OK;
}

/** Return the place of an object inside a case, for messages. */
static place_t inside(const place_t *place, const char *name)
{
    place_t inner = {.path = place->path};
    snprintf(inner.where, sizeof(inner.where), "%.40s%s.", place->where, name);
    return inner;
}

static tw_status_t read_case(const place_t *place, json_t *json, const tw_plan_case_t *usual,
                             tw_plan_case_t *given)
{
    *given = *usual;
    given->accumulation = usual->accumulation > 0 ? usual->accumulation : 1;
    given->gradient_bytes = 2.0;
    given->reshard = 1;
    TW_TRY(take_object(place, case_keys, N_CASE_KEYS, json, given));
    json_t *fitted = json_object_get(json, "fitted");
    json_t *codecs = json_object_get(json, "codec_bytes_per_sec");
    if (codecs) {
        place_t inner = inside(place, "codec_bytes_per_sec");
        TW_TRY(take_object(&inner, codec_keys, N_CODEC_KEYS, codecs, given));
    }
    if (fitted) {
        place_t inner = inside(place, "fitted");
        TW_TRY(read_point(&inner, given, fitted, &given->fitted));
    }
    TW_TRY(read_points(place, json_object_get(json, "measured"), given));
    return check_case(place, given);
}

static tw_status_t read_cases(const char *path, const tw_plan_case_t *usual, tw_plan_cases_t *cases)
{
    json_t *list = json_object_get(cases->root, "cases");
    place_t place = {.path = path};
    if (list && !json_is_array(list)) {
        return unlike(&place, "cases", "a list");
    }
    size_t n = list ? json_array_size(list) : 1;
    cases->list = calloc(n + 1, sizeof(*cases->list));
    TW_FAIL_IF(!cases->list, TW_ERR_NO_MEMORY, "plan: out of memory");
    for (size_t i = 0; i < n; i++) {
        if (list) {
            snprintf(place.where, sizeof(place.where), "cases[%zu].", i);
        }
        cases->n = i + 1; /* so that a case that fails half-way is freed, too */
        TW_TRY(read_case(&place, list ? json_array_get(list, i) : cases->root, usual, &cases->list[i]));
    }
    return TW_OK;
}

tw_status_t tw_plan_cases_read(const char *path, const tw_plan_case_t *usual, tw_plan_cases_t **out)
{
    json_error_t error;
    tw_plan_cases_t *cases = calloc(1, sizeof(*cases));
    TW_FAIL_IF(!cases, TW_ERR_NO_MEMORY, "plan: out of memory");
    cases->root = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (!cases->root) {
        tw_error("%s:%d:%d: %s", path, error.line, error.column, error.text);
    }
    tw_status_t status = cases->root ? read_cases(path, usual, cases) : TW_ERR_FORMAT;
    if (status != TW_OK) {
        tw_plan_cases_destroy(cases);
        cases = NULL;
    }
    *out = cases;
    return status;
}

void tw_plan_cases_destroy(tw_plan_cases_t *cases)
{
    for (size_t i = 0; cases && i < cases->n; i++) {
        free(cases->list[i].points);
    }
    if (cases) {
        json_decref(cases->root);
        free(cases->list);
    }
    free(cases);
}
