/* Writes safetensors files: first the header, as JSON, then the data. At the end it renames the file. */
#include "safetensors/safetensors.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#define METADATA_KEY "__metadata__"
/* The data begin at a multiple of this, as in files of the reference implementation. */
#define ALIGN_BYTES 8u

struct tw_safetensors_writer {
    char *path, *temporary;
    FILE *out;
    size_t data_bytes, written;
};

static tw_status_t io_error(const char *path, const char *what)
{
    int error = errno;
    tw_error("%s: cannot %s: %s", path, what, strerror(error));
    return tw_status_from_errno(error);
}

static tw_status_t no_memory(const char *path)
{
    return tw_fail(TW_ERR_NO_MEMORY, "%s: out of memory", path);
}

static const char *dtype_of(tw_type_t type)
{
    return type == TW_TYPE_FP32 ? "F32" : type == TW_TYPE_BF16 ? "BF16" : type == TW_TYPE_FP16 ? "F16" : NULL;
}

/* ---- the header ---------------------------------------------------------------------------------------- */

static tw_status_t spec_bytes(const char *path, const tw_safetensors_spec_t *spec, size_t *bytes)
{
    TW_FAIL_IF(!dtype_of(spec->type) || spec->n_dims < 0 || spec->n_dims > TW_SAFETENSORS_MAX_DIMS,
               TW_ERR_INVALID, "%s: tensor '%s': type %d or its %d dimensions cannot be written", path,
               spec->name, (int)spec->type, spec->n_dims);
    *bytes = tw_type_bytes(spec->type);
    for (int d = 0; d < spec->n_dims; d++) {
        *bytes = tw_size_mul(*bytes, spec->dims[d]);
        TW_FAIL_IF(*bytes > TW_MEMORY_BYTES_MAX || spec->dims[d] > TW_MEMORY_BYTES_MAX, TW_ERR_INVALID,
                   "%s: tensor '%s': too many elements", path, spec->name);
    }
    return TW_OK;
}

static json_t *shape_of(const tw_safetensors_spec_t *spec)
{
    json_t *shape = json_array();
    for (int d = 0; d < spec->n_dims; d++) {
        json_array_append_new(shape, json_integer((json_int_t)spec->dims[d]));
    }
    return shape;
}

static tw_status_t add_tensor(const char *path, json_t *header, const tw_safetensors_spec_t *spec,
                              size_t *offset)
{
    size_t bytes;
    TW_TRY(spec_bytes(path, spec, &bytes));
    TW_FAIL_IF(tw_size_add(*offset, bytes) > TW_MEMORY_BYTES_MAX, TW_ERR_INVALID,
               "%s: tensor '%s': with those before it, too many elements", path, spec->name);
    TW_FAIL_IF(json_object_get(header, spec->name) || strcmp(spec->name, METADATA_KEY) == 0, TW_ERR_INVALID,
               "%s: tensor '%s': this name is taken", path, spec->name);
    json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtype_of(spec->type), "shape", shape_of(spec),
                              "data_offsets", (json_int_t)*offset, (json_int_t)(*offset + bytes));
    TW_FAIL_IF(json_object_set_new(header, spec->name, entry) != 0, TW_ERR_INVALID,
               "%s: tensor '%s': the name is not UTF-8, or memory is short", path, spec->name);
    *offset += bytes;
    return TW_OK;
}

static tw_status_t add_metadata(const char *path, json_t *header, const char *const *metadata)
{
    json_t *entries = json_object();
    int failed = !entries;
    for (; metadata && metadata[0] && !failed; metadata += 2) {
        failed = json_object_set_new(entries, metadata[0], json_string(metadata[1])) != 0;
    }
    if (!failed && json_object_size(entries) > 0) {
        failed = json_object_set(header, METADATA_KEY, entries) != 0;
    }
    json_decref(entries);
    return failed ? tw_fail(TW_ERR_INVALID, "%s: the metadata are not UTF-8, or memory is short", path)
                  : TW_OK;
}

static tw_status_t make_header(const char *path, const tw_safetensors_spec_t *specs, size_t n_specs,
                               const char *const *metadata, char **text, size_t *data_bytes)
{
    json_t *header = json_object();
    tw_status_t status = header ? add_metadata(path, header, metadata) : no_memory(path);
    *data_bytes = 0;
    for (size_t i = 0; i < n_specs && status == TW_OK; i++) {
        status = add_tensor(path, header, &specs[i], data_bytes);
    }
    if (status == TW_OK) {
        *text = json_dumps(header, JSON_COMPACT);
        status = *text ? TW_OK : no_memory(path);
    }
    json_decref(header);
    return status;
}

/** Write the header: its length, its text, and spaces up to the alignment. */
static void write_header(FILE *out, const char *text)
{
    size_t length = strlen(text);
    size_t padded = (length + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    uint64_t stored = htole64((uint64_t)padded);
    fwrite(&stored, sizeof(stored), 1, out);
    fprintf(out, "%-*s", (int)padded, text);
}

/* ---- the file ------------------------------------------------------------------------------------------ */

static tw_status_t open_temporary(tw_safetensors_writer_t *writer, const char *path)
{
    writer->path = strdup(path);
    writer->temporary = malloc(strlen(path) + sizeof(".tmp"));
    if (!writer->path || !writer->temporary) {
        return no_memory(path);
    }
    sprintf(writer->temporary, "%s.tmp", path);
    writer->out = fopen(writer->temporary, "wbe");
    return writer->out ? TW_OK : io_error(writer->temporary, "write it");
}

tw_status_t tw_safetensors_writer_create(const char *path, const tw_safetensors_spec_t *specs, size_t n_specs,
                                         const char *const *metadata, tw_safetensors_writer_t **out)
{
    char *header = NULL;
    tw_safetensors_writer_t *writer = calloc(1, sizeof(*writer));
    tw_status_t status =
        writer ? make_header(path, specs, n_specs, metadata, &header, &writer->data_bytes) : no_memory(path);
    status = status == TW_OK ? open_temporary(writer, path) : status;
    if (status != TW_OK) {
        goto err_writer;
    }
    write_header(writer->out, header); /* errors of the stream are checked at the end (ferror) */
    free(header);
    *out = writer;
    return TW_OK;

err_writer:
    free(header);
    tw_safetensors_writer_destroy(writer);
    return status;
}

tw_status_t tw_safetensors_writer_write(tw_safetensors_writer_t *writer, const void *data, size_t bytes)
{
    TW_FAIL_IF(bytes > writer->data_bytes - writer->written, TW_ERR_INVALID,
               "%s: %zu bytes more than its tensors have", writer->path,
               bytes - (writer->data_bytes - writer->written));
    if (bytes > 0 && fwrite(data, 1, bytes, writer->out) != bytes) {
        return io_error(writer->temporary, "write it");
    }
    writer->written += bytes;
    return TW_OK;
}

/** Flush a file's directory to the disk, which makes the file's new name permanent. */
static tw_status_t sync_folder(const char *path)
{
    char *copy = strdup(path);
    if (!copy) {
        return no_memory(path);
    }
    int fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    tw_status_t status = fd >= 0 && fsync(fd) == 0 ? TW_OK : io_error(path, "bring its name to the disk");
    if (fd >= 0) {
        close(fd);
    }
    free(copy);
    return status;
}

static tw_status_t close_file(tw_safetensors_writer_t *writer)
{
    TW_FAIL_IF(writer->written != writer->data_bytes, TW_ERR_INVALID,
               "%s: %zu of its %zu bytes were never written", writer->path,
               writer->data_bytes - writer->written, writer->data_bytes);
    if (fflush(writer->out) != 0 || ferror(writer->out) || fsync(fileno(writer->out)) != 0) {
        return io_error(writer->temporary, "bring it to the disk");
    }
    if (rename(writer->temporary, writer->path) != 0) {
        return io_error(writer->path, "give a file this name");
    }
    return sync_folder(writer->path);
}

tw_status_t tw_safetensors_writer_finish(tw_safetensors_writer_t *writer)
{
    tw_status_t status = close_file(writer);
    tw_safetensors_writer_destroy(writer); /* after success, the temporary file does not exist any more */
    return status;
}

void tw_safetensors_writer_destroy(tw_safetensors_writer_t *writer)
{
    if (!writer) {
        return;
    }
    if (writer->out) {
        fclose(writer->out);
        unlink(writer->temporary);
    }
    free(writer->temporary);
    free(writer->path);
    free(writer);
}
