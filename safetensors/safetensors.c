/* Reads safetensors files. Opening one checks its whole header: dtypes, shapes, and the place of each
 * tensor. */
#include "safetensors/safetensors.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

/* Maximum length of a header, as in the reference implementation. */
#define HEADER_MAX_BYTES 100000000u
#define LENGTH_BYTES 8u
#define METADATA_KEY "__metadata__"

struct tw_safetensors {
    char *label;
    void *map; /* NULL: the bytes are borrowed */
    size_t map_bytes;
    const unsigned char *data;
    size_t data_bytes;
    json_t *header; /* owns the tensors' names */
    tw_safetensors_tensor_t *tensors;
    size_t n_tensors;
};

typedef struct dtype_info {
    const char *name;
    size_t bytes;
    tw_type_t type;
    size_t packed; /* how many numbers are packed into `bytes`; 0: one */
} dtype_info_t;

static const dtype_info_t dtypes[] = {
    {.name = "F32", .bytes = 4, .type = TW_TYPE_FP32},
    {.name = "BF16", .bytes = 2, .type = TW_TYPE_BF16},
    {.name = "F16", .bytes = 2, .type = TW_TYPE_FP16},
    {.name = "F64", .bytes = 8, .type = TW_TYPE_BYTE},
    {.name = "I64", .bytes = 8, .type = TW_TYPE_BYTE},
    {.name = "I32", .bytes = 4, .type = TW_TYPE_BYTE},
    {.name = "I16", .bytes = 2, .type = TW_TYPE_BYTE},
    {.name = "I8", .bytes = 1, .type = TW_TYPE_BYTE},
    {.name = "U64", .bytes = 8, .type = TW_TYPE_BYTE},
    {.name = "U32", .bytes = 4, .type = TW_TYPE_BYTE},
    {.name = "U16", .bytes = 2, .type = TW_TYPE_BYTE},
    {.name = "U8", .bytes = 1, .type = TW_TYPE_BYTE},
    {.name = "BOOL", .bytes = 1, .type = TW_TYPE_BYTE},
    {.name = "F8_E4M3", .bytes = 1, .type = TW_TYPE_BYTE},
    {.name = "F8_E5M2", .bytes = 1, .type = TW_TYPE_BYTE},
    {.name = "F8_E8M0", .bytes = 1, .type = TW_TYPE_BYTE},
    {.name = "F8_E4M3FNUZ", .bytes = 1, .type = TW_TYPE_BYTE},
    {.name = "F8_E5M2FNUZ", .bytes = 1, .type = TW_TYPE_BYTE},
    {.name = "F4", .bytes = 1, .type = TW_TYPE_BYTE, .packed = 2},
};

static tw_status_t no_memory(const char *label)
{
    return tw_fail(TW_ERR_NO_MEMORY, "%s: out of memory", label);
}

static const dtype_info_t *dtype_find(const char *name)
{
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
        if (strcmp(dtypes[i].name, name) == 0) {
            return &dtypes[i];
        }
    }
    return NULL;
}

static tw_status_t parse_dtype(const tw_safetensors_t *file, const json_t *entry,
                               tw_safetensors_tensor_t *tensor, const dtype_info_t **found)
{
    const char *name = json_string_value(json_object_get(entry, "dtype"));
    const dtype_info_t *dtype = name ? dtype_find(name) : NULL;
    TW_FAIL_IF(!dtype, TW_ERR_FORMAT, "%s: tensor '%s': %s dtype '%s'", file->label, tensor->name,
               name ? "unknown" : "no", name ? name : "");
    snprintf(tensor->dtype, sizeof(tensor->dtype), "%s", dtype->name);
    tensor->type = dtype->type;
    *found = dtype;
    return TW_OK;
}

static tw_status_t parse_shape(const tw_safetensors_t *file, const json_t *entry,
                               tw_safetensors_tensor_t *tensor)
{
    const json_t *shape = json_object_get(entry, "shape");
    TW_FAIL_IF(!json_is_array(shape) || json_array_size(shape) > TW_SAFETENSORS_MAX_DIMS, TW_ERR_FORMAT,
               "%s: tensor '%s': shape is not an array of at most %d dimensions", file->label, tensor->name,
               TW_SAFETENSORS_MAX_DIMS);
    tensor->n_dims = (int)json_array_size(shape);
    tensor->n_elems = 1;
    for (int d = 0; d < tensor->n_dims; d++) {
        const json_t *dim = json_array_get(shape, (size_t)d);
        json_int_t value = json_is_integer(dim) ? json_integer_value(dim) : -1;
        TW_FAIL_IF(value < 0 || __builtin_mul_overflow(tensor->n_elems, (size_t)value, &tensor->n_elems),
                   TW_ERR_FORMAT, "%s: tensor '%s': dimension %d is no usable count", file->label,
                   tensor->name, d);
        tensor->dims[d] = (size_t)value;
    }
    return TW_OK;
}

static tw_status_t parse_offsets(const tw_safetensors_t *file, const json_t *entry,
                                 tw_safetensors_tensor_t *tensor, const dtype_info_t *dtype)
{
    const json_t *offsets = json_object_get(entry, "data_offsets");
    const json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);
    TW_FAIL_IF(json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(last),
               TW_ERR_FORMAT, "%s: tensor '%s': data_offsets are not two integers", file->label,
               tensor->name);
    json_int_t begin = json_integer_value(first), end = json_integer_value(last);
    TW_FAIL_IF(begin < 0 || end < begin || (uint64_t)end > file->data_bytes, TW_ERR_TRUNCATED,
               "%s: tensor '%s': data_offsets [%lld, %lld] lie outside the file's %zu bytes of data",
               file->label, tensor->name, (long long)begin, (long long)end, file->data_bytes);
    size_t bytes, packed = dtype->packed ? dtype->packed : 1;
    TW_FAIL_IF(__builtin_mul_overflow(tensor->n_elems / packed, dtype->bytes, &bytes) ||
                   tensor->n_elems % packed != 0 || bytes != (size_t)(end - begin),
               TW_ERR_FORMAT, "%s: tensor '%s': %zu elements of %s do not fill its %lld bytes", file->label,
               tensor->name, tensor->n_elems, tensor->dtype, (long long)(end - begin));
    tensor->bytes = bytes;
    tensor->data = file->data + begin;
    return TW_OK;
}

static tw_status_t parse_tensor(const tw_safetensors_t *file, const char *name, const json_t *entry,
                                tw_safetensors_tensor_t *tensor)
{
    tensor->name = name;
    TW_FAIL_IF(!json_is_object(entry), TW_ERR_FORMAT, "%s: tensor '%s': its header entry is not an object",
               file->label, name);
    const dtype_info_t *dtype;
    TW_TRY(parse_dtype(file, entry, tensor, &dtype));
    TW_TRY(parse_shape(file, entry, tensor));
    return parse_offsets(file, entry, tensor, dtype);
}

/** Order tensors by their begin. An empty tensor comes before a non-empty one with the same begin. */
static int compare_tensors(const void *a, const void *b)
{
    const tw_safetensors_tensor_t *x = a, *y = b;
    if (x->data != y->data) {
        return (uintptr_t)x->data < (uintptr_t)y->data ? -1 : 1;
    }
    if (x->bytes != y->bytes) {
        return x->bytes < y->bytes ? -1 : 1;
    }
    return strcmp(x->name, y->name);
}

/** Check that there are neither holes nor overlaps. Bytes outside all tensors indicate a damaged header. */
static tw_status_t check_layout(const tw_safetensors_t *file)
{
    size_t at = 0;
    for (size_t i = 0; i < file->n_tensors; i++) {
        const tw_safetensors_tensor_t *tensor = &file->tensors[i];
        size_t begin = (size_t)((const unsigned char *)tensor->data - file->data);
        TW_FAIL_IF(begin != at, TW_ERR_FORMAT,
                   "%s: tensor '%s': starts at %zu, %s the tensor before it, which ends at %zu", file->label,
                   tensor->name, begin, begin < at ? "inside" : "not right after", at);
        at += tensor->bytes;
    }
    TW_FAIL_IF(at != file->data_bytes, TW_ERR_FORMAT, "%s: %zu bytes after the last tensor belong to none",
               file->label, file->data_bytes - at);
    return TW_OK;
}

static tw_status_t parse_tensors(tw_safetensors_t *file)
{
    file->tensors = calloc(json_object_size(file->header) + 1, sizeof(*file->tensors));
    if (!file->tensors) {
        return no_memory(file->label);
    }
    const char *name;
    json_t *entry;
    json_object_foreach(file->header, name, entry)
    {
        if (strcmp(name, METADATA_KEY) == 0) {
            continue;
        }
        TW_TRY(parse_tensor(file, name, entry, &file->tensors[file->n_tensors]));
        file->n_tensors++;
    }
    qsort(file->tensors, file->n_tensors, sizeof(*file->tensors), compare_tensors);
    return check_layout(file);
}

static tw_status_t parse_header(tw_safetensors_t *file, const unsigned char *bytes, size_t n_bytes)
{
    uint64_t header_bytes;
    TW_FAIL_IF(n_bytes < LENGTH_BYTES, TW_ERR_TRUNCATED, "%s: %zu bytes are too few for a safetensors file",
               file->label, n_bytes);
    memcpy(&header_bytes, bytes, LENGTH_BYTES);
    header_bytes = le64toh(header_bytes);
    TW_FAIL_IF(header_bytes > HEADER_MAX_BYTES, TW_ERR_FORMAT,
               "%s: not a safetensors file: a header of %llu bytes", file->label,
               (unsigned long long)header_bytes);
    TW_FAIL_IF(header_bytes > n_bytes - LENGTH_BYTES, TW_ERR_TRUNCATED,
               "%s: the header's %llu bytes are not all there", file->label,
               (unsigned long long)header_bytes);
    json_error_t error;
    file->header =
        json_loadb((const char *)bytes + LENGTH_BYTES, (size_t)header_bytes, JSON_REJECT_DUPLICATES, &error);
    TW_FAIL_IF(!json_is_object(file->header), TW_ERR_FORMAT, "%s: the header is not a JSON object%s%s",
               file->label, file->header ? "" : ": ", file->header ? "" : error.text);
    file->data = bytes + LENGTH_BYTES + header_bytes;
    file->data_bytes = n_bytes - LENGTH_BYTES - (size_t)header_bytes;
    return TW_OK;
}

tw_status_t tw_safetensors_parse(const void *bytes, size_t n_bytes, const char *label, tw_safetensors_t **out)
{
    tw_safetensors_t *file = calloc(1, sizeof(*file));
    if (!file) {
        return no_memory(label);
    }
    file->label = strdup(label);
    tw_status_t status = file->label ? parse_header(file, bytes, n_bytes) : no_memory(label);
    if (status != TW_OK) {
        goto err_file;
    }
    status = parse_tensors(file);
    if (status != TW_OK) {
        goto err_file;
    }
    *out = file;
    return TW_OK;

err_file:
    tw_safetensors_close(file);
    return status;
}

static tw_status_t map_file(const char *path, void **map, size_t *bytes)
{
    /* non-blocking, because opening a FIFO would otherwise wait for a writer */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat info;
    if (fd < 0 || fstat(fd, &info) != 0) {
        int error = errno;
        tw_error("%s: cannot open: %s", path, strerror(error));
        if (fd >= 0) {
            close(fd);
        }
        return tw_status_from_errno(error);
    }
    tw_status_t status = TW_OK;
    if (!S_ISREG(info.st_mode)) {
        status = tw_fail(TW_ERR_INVALID, "%s: not a regular file", path);
    } else if (info.st_size < (off_t)LENGTH_BYTES) {
        tw_error("%s: %lld bytes are too few for a safetensors file", path, (long long)info.st_size);
        status = TW_ERR_TRUNCATED;
    } else {
        *bytes = (size_t)info.st_size;
        *map = mmap(NULL, *bytes, PROT_READ, MAP_PRIVATE, fd, 0);
        if (*map == MAP_FAILED) {
            int error = errno;
            tw_error("%s: cannot map: %s", path, strerror(error));
            status = tw_status_from_errno(error);
        }
    }
    close(fd);
    return status;
}

tw_status_t tw_safetensors_open(const char *path, tw_safetensors_t **out)
{
    void *map = NULL;
    size_t bytes = 0;
    TW_TRY(map_file(path, &map, &bytes));
    tw_safetensors_t *file;
    tw_status_t status = tw_safetensors_parse(map, bytes, path, &file);
    if (status != TW_OK) {
        munmap(map, bytes);
        return status;
    }
    file->map = map;
    file->map_bytes = bytes;
    *out = file;
    return TW_OK;
}

void tw_safetensors_close(tw_safetensors_t *file)
{
    if (!file) {
        return;
    }
    free(file->tensors);
    json_decref(file->header);
    if (file->map) {
        munmap(file->map, file->map_bytes);
    }
    free(file->label);
    free(file);
}

size_t tw_safetensors_count(const tw_safetensors_t *file)
{
    return file->n_tensors;
}

const tw_safetensors_tensor_t *tw_safetensors_get(const tw_safetensors_t *file, size_t index)
{
    return index < file->n_tensors ? &file->tensors[index] : NULL;
}

const tw_safetensors_tensor_t *tw_safetensors_find(const tw_safetensors_t *file, const char *name)
{
    for (size_t i = 0; i < file->n_tensors; i++) {
        if (strcmp(file->tensors[i].name, name) == 0) {
            return &file->tensors[i];
        }
    }
    return NULL;
}
