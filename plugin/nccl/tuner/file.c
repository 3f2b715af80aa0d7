/* Reads TW_TUNER_FILE by a table of keys: a value's path in the JSON ("inter.gbps"), and its struct
 * member. */
#include "plugin/nccl/tuner/tuner.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#define PATH_BYTES 96
#define FILE_MAX_BYTES ((size_t)1 << 20)
#define OFFSET(member) offsetof(tw_tuner_constants_t, member)

typedef struct file_key {
    const char *path;
    size_t offset; /* offset of a double, or with is_bytes of a size_t */
    double min, max;
    int is_bytes; /* 1: the value is a size_t */
} file_key_t;

#define ALPHA(name, member)                                          \
    {                                                                \
        .path = name, .offset = OFFSET(member), .min = 0, .max = 1e6 \
    }
#define GBPS(name, member)                                              \
    {                                                                   \
        .path = name, .offset = OFFSET(member), .min = 1e-3, .max = 1e5 \
    }
#define WIRE(name, member)                                          \
    {                                                               \
        .path = name, .offset = OFFSET(member), .min = 1, .max = 16 \
    }
#define SHARE(name, member)                                           \
    {                                                                 \
        .path = name, .offset = OFFSET(member), .min = 0.01, .max = 1 \
    }

static const file_key_t keys[] = {
    ALPHA("inter.alpha_us", inter.alpha_us),
    GBPS("inter.gbps", inter.gbps),
    ALPHA("node.alpha_us", node.alpha_us),
    GBPS("node.gbps", node.gbps),
    ALPHA("protocols.ll.alpha_us", proto[TW_NCCL_LL].alpha_us),
    WIRE("protocols.ll.bytes", proto[TW_NCCL_LL].bytes),
    ALPHA("protocols.ll128.alpha_us", proto[TW_NCCL_LL128].alpha_us),
    WIRE("protocols.ll128.bytes", proto[TW_NCCL_LL128].bytes),
    ALPHA("protocols.simple.alpha_us", proto[TW_NCCL_SIMPLE].alpha_us),
    WIRE("protocols.simple.bytes", proto[TW_NCCL_SIMPLE].bytes),
    SHARE("shares.tree", share[TW_NCCL_TREE]),
    SHARE("shares.ring", share[TW_NCCL_RING]),
    SHARE("shares.collnet_direct", share[TW_NCCL_COLLNET_DIRECT]),
    SHARE("shares.collnet_chain", share[TW_NCCL_COLLNET_CHAIN]),
    SHARE("shares.nvls", share[TW_NCCL_NVLS]),
    SHARE("shares.nvls_tree", share[TW_NCCL_NVLS_TREE]),
    SHARE("shares.pat", share[TW_NCCL_PAT]),
    {.path = "collnet_min_bytes", .offset = OFFSET(collnet_min_bytes), .min = 0, .max = 1e15, .is_bytes = 1},
};
#define N_KEYS (sizeof(keys) / sizeof(keys[0]))

static const file_key_t *find_key(const char *path)
{
    for (size_t i = 0; i < N_KEYS; i++) {
        if (strcmp(keys[i].path, path) == 0) {
            return &keys[i];
        }
    }
    return NULL;
}

/** Returns 1 if `path` is an object of the file: some key begins with it and a dot. */
static int is_section(const char *path)
{
    size_t length = strlen(path);
    for (size_t i = 0; i < N_KEYS; i++) {
        if (strncmp(keys[i].path, path, length) == 0 && keys[i].path[length] == '.') {
            return 1;
        }
    }
    return 0;
}

static tw_status_t file_unknown_key(const char *file, const char *path)
{
    const char *names[N_KEYS], *nearest;
    for (size_t i = 0; i < N_KEYS; i++) {
        names[i] = keys[i].path;
    }
    nearest = tw_nearest_name(path, names, N_KEYS);
    return tw_fail(TW_ERR_FORMAT, "%s: unknown key \"%s\"%s%s%s", file, path, nearest ? "; \"" : "",
                   nearest ? nearest : "", nearest ? "\" is the nearest" : "");
}

static tw_status_t read_value(const char *file, const file_key_t *key, const json_t *json,
                              tw_tuner_constants_t *constants)
{
    char *at = (char *)constants + key->offset;
    double value = json_number_value(json);
    TW_FAIL_IF(!json_is_number(json) || !(value >= key->min && value <= key->max), TW_ERR_FORMAT,
               "%s: \"%s\": expected a number from %g to %g", file, key->path, key->min, key->max);
    if (key->is_bytes) {
        *(size_t *)at = (size_t)value;
    } else {
        *(double *)at = value;
    }
    return TW_OK;
}

static tw_status_t read_object(const char *file, const char *prefix, json_t *object,
                               tw_tuner_constants_t *constants);

static tw_status_t read_member(const char *file, const char *path, json_t *json,
                               tw_tuner_constants_t *constants)
{
    const file_key_t *key = find_key(path);
    if (key) {
        return read_value(file, key, json, constants);
    }
    if (!is_section(path)) {
        return file_unknown_key(file, path);
    }
    TW_FAIL_IF(!json_is_object(json), TW_ERR_FORMAT, "%s: \"%s\": expected an object", file, path);
    return read_object(file, path, json, constants);
}

/** Read an object, and objects in it (recursion). Only known sections are entered, which limits the depth. */
static tw_status_t read_object(const char *file, const char *prefix, json_t *object,
                               tw_tuner_constants_t *constants)
{
    const char *name;
    json_t *json;
    json_object_foreach(object, name, json)
    {
        char path[PATH_BYTES];
        (void)snprintf(path, sizeof(path), "%s%s%s", prefix, prefix[0] != '\0' ? "." : "", name);
        TW_TRY(read_member(file, path, json, constants));
    }
    return TW_OK;
}

static tw_status_t read_stream(const char *path, FILE *stream, tw_tuner_constants_t *constants)
{
    tw_tuner_constants_t read = *constants;
    json_error_t error;
    json_t *json = json_loadf(stream, JSON_REJECT_DUPLICATES, &error);
    tw_status_t status = TW_ERR_FORMAT;
    if (!json) {
        tw_error("%s:%d: %s", path, error.line, error.text);
    } else if (!json_is_object(json)) {
        tw_error("%s: expected an object", path);
    } else {
        status = read_object(path, "", json, &read);
    }
    json_decref(json);
    if (status == TW_OK) {
        *constants = read;
    }
    return status;
}

static tw_status_t check_size(const char *path, FILE *stream)
{
    long bytes = fseek(stream, 0, SEEK_END) == 0 ? ftell(stream) : -1;
    TW_FAIL_IF(bytes < 0 || fseek(stream, 0, SEEK_SET) != 0, TW_ERR_IO, "%s: %s", path, strerror(errno));
    TW_FAIL_IF((size_t)bytes > FILE_MAX_BYTES, TW_ERR_FORMAT,
               "%s: %ld bytes are too many for a file of constants", path, bytes);
    return TW_OK;
}

tw_status_t tw_tuner_file_read(const char *path, tw_tuner_constants_t *constants)
{
    FILE *stream = fopen(path, "re");

    TW_FAIL_IF(!stream, tw_status_from_errno(errno), "%s: %s", path, strerror(errno));
    tw_status_t status = check_size(path, stream);
    status = status == TW_OK ? read_stream(path, stream, constants) : status;
    (void)fclose(stream);
    return status;
}
