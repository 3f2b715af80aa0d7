/** Writes and parses the messages of messages.h. No input is trusted: every length is checked before use. */
#include "transport/control/messages.h"

#include <stdlib.h>
#include <string.h>

#define MAGIC 0x52495754u /* "TWIR" */
#define VERSION 1

/* ---- bytes --------------------------------------------------------------------------------------------- */

void tw_msg_write(tw_msg_writer_t *writer, const void *data, size_t bytes)
{
    if (writer->failed || !bytes) {
        return;
    }
    if (!tw_grow(&writer->data, &writer->capacity, writer->bytes + bytes, 1)) {
        writer->failed = 1;
        return;
    }
    memcpy(writer->data + writer->bytes, data, bytes);
    writer->bytes += bytes;
}

void tw_msg_writer_cleanup(tw_msg_writer_t *writer)
{
    free(writer->data);
    *writer = (tw_msg_writer_t){0};
}

static void store(uint8_t *out, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        out[i] = (uint8_t)(value >> (8 * i));
    }
}

static void write_number(tw_msg_writer_t *writer, uint64_t value, size_t bytes)
{
    uint8_t raw[8];
    store(raw, value, bytes);
    tw_msg_write(writer, raw, bytes);
}

/** The bytes that are left to read. Reading past the end gives zeros, and sets `failed`. */
typedef struct reader {
    const uint8_t *data;
    size_t left;
    int failed;
} reader_t;

static const uint8_t *msg_read_bytes(reader_t *reader, size_t bytes)
{
    const uint8_t *data = reader->data;
    if (reader->failed || bytes > reader->left) {
        reader->failed = 1;
        return NULL;
    }
    reader->data += bytes;
    reader->left -= bytes;
    return data;
}

static uint64_t msg_read_number(reader_t *reader, size_t bytes)
{
    const uint8_t *raw = msg_read_bytes(reader, bytes);
    uint64_t value = 0;
    for (size_t i = 0; raw && i < bytes; i++) {
        value |= (uint64_t)raw[i] << (8 * i);
    }
    return value;
}

static tw_status_t read_end(const reader_t *reader)
{
    return reader->failed || reader->left ? TW_ERR_FORMAT : TW_OK;
}

/* ---- header -------------------------------------------------------------------------------------------- */

const char *tw_msg_type_name(int type)
{
    switch (type) {
#define TW_MSG_CASE(name, value, max_bytes) \
    case value:                             \
        return &#name[7];
        TW_MSG_LIST(TW_MSG_CASE)
#undef TW_MSG_CASE
    default:
        return "?";
    }
}

/** Return the largest payload of a message type, or -1 if there is no such type. */
static int64_t max_bytes_of(int type)
{
    switch (type) {
#define TW_MSG_CASE(name, value, max_bytes) \
    case value:                             \
        return (int64_t)(max_bytes);
        TW_MSG_LIST(TW_MSG_CASE)
#undef TW_MSG_CASE
    default:
        return -1;
    }
}

void tw_msg_header_write(const tw_msg_header_t *header, uint8_t out[TW_MSG_HEADER_BYTES])
{
    store(out, MAGIC, 4);
    out[4] = VERSION;
    out[5] = (uint8_t)header->type;
    out[6] = out[7] = 0;
    store(out + 8, header->bytes, 4);
}

tw_status_t tw_msg_header_parse(const uint8_t in[TW_MSG_HEADER_BYTES], tw_msg_header_t *header)
{
    reader_t reader = {in, TW_MSG_HEADER_BYTES, 0};
    const uint64_t magic = msg_read_number(&reader, 4);
    const uint64_t version = msg_read_number(&reader, 1);
    header->type = (int)msg_read_number(&reader, 1);
    const uint64_t zero = msg_read_number(&reader, 2);
    header->bytes = (uint32_t)msg_read_number(&reader, 4);
    if (magic != MAGIC || version != VERSION || zero) {
        return TW_ERR_FORMAT;
    }
    return (int64_t)header->bytes <= max_bytes_of(header->type) ? TW_OK : TW_ERR_FORMAT;
}

/* ---- payloads ------------------------------------------------------------------------------------------ */

void tw_msg_join_write(const tw_msg_join_t *join, tw_msg_writer_t *out)
{
    tw_msg_write(out, join->instance, sizeof(join->instance));
    write_number(out, join->rank, 4);
    write_number(out, join->world, 4);
    write_number(out, (uint32_t)join->who.local_rank, 4);
    write_number(out, join->who.node_id, 8);
    write_number(out, join->who.shm_id, 8);
    tw_msg_write(out, join->version, sizeof(join->version));
    tw_msg_write(out, join->who.ucx, sizeof(join->who.ucx));
    write_number(out, (uint32_t)join->who.local_world, 4);
    tw_msg_write(out, join->who.net_tls, sizeof(join->who.net_tls));
    tw_msg_write(out, join->who.node_tls, sizeof(join->who.node_tls));
}

/** Read a text from a field of `bytes`, in which it must end with a 0. */
static void read_text(reader_t *reader, char *text, size_t bytes)
{
    const uint8_t *raw = msg_read_bytes(reader, bytes);
    memset(text, 0, bytes);
    for (size_t i = 0; raw && i < bytes - 1 && raw[i]; i++) {
        text[i] = raw[i] >= ' ' && raw[i] < 127 ? (char)raw[i] : '?';
    }
}

tw_status_t tw_msg_join_parse(const uint8_t *in, size_t bytes, tw_msg_join_t *join)
{
    reader_t reader = {in, bytes, 0};
    const uint8_t *instance = msg_read_bytes(&reader, sizeof(join->instance));
    if (instance) {
        memcpy(join->instance, instance, sizeof(join->instance));
    }
    join->rank = (uint32_t)msg_read_number(&reader, 4);
    join->world = (uint32_t)msg_read_number(&reader, 4);
    join->who.local_rank = (int32_t)msg_read_number(&reader, 4);
    join->who.node_id = msg_read_number(&reader, 8);
    join->who.shm_id = msg_read_number(&reader, 8);
    join->version[0] = join->who.ucx[0] = '\0';
    if (reader.left > 0) {
        read_text(&reader, join->version, sizeof(join->version));
        read_text(&reader, join->who.ucx, sizeof(join->who.ucx));
    }
    join->who.local_world = -1;
    join->who.net_tls[0] = join->who.node_tls[0] = '\0';
    if (reader.left > 0) {
        join->who.local_world = (int32_t)msg_read_number(&reader, 4);
        read_text(&reader, join->who.net_tls, sizeof(join->who.net_tls));
        read_text(&reader, join->who.node_tls, sizeof(join->who.node_tls));
    }
    return reader.failed ? TW_ERR_FORMAT : TW_OK;
}

void tw_msg_members_write(const tw_msg_settings_t *settings, const tw_msg_member_t *members, uint32_t world,
                          tw_msg_writer_t *out)
{
    write_number(out, settings->peer_timeout_ms, 4);
    write_number(out, settings->chunk_bytes, 4);
    write_number(out, settings->eager_bytes, 4);
    write_number(out, settings->streams, 4);
    tw_msg_write(out, settings->device, sizeof(settings->device));
    write_number(out, world, 4);
    for (uint32_t r = 0; r < world; r++) {
        write_number(out, (uint32_t)members[r].local_rank, 4);
        write_number(out, members[r].node_id, 8);
        write_number(out, members[r].shm_id, 8);
    }
}

tw_status_t tw_msg_members_parse(const uint8_t *in, size_t bytes, uint32_t world, tw_msg_settings_t *settings,
                                 tw_msg_member_t *members)
{
    reader_t reader = {in, bytes, 0};
    settings->peer_timeout_ms = (uint32_t)msg_read_number(&reader, 4);
    settings->chunk_bytes = (uint32_t)msg_read_number(&reader, 4);
    settings->eager_bytes = (uint32_t)msg_read_number(&reader, 4);
    settings->streams = (uint32_t)msg_read_number(&reader, 4);
    const uint8_t *device = msg_read_bytes(&reader, sizeof(settings->device));
    if (msg_read_number(&reader, 4) != world || !device || device[sizeof(settings->device) - 1]) {
        return TW_ERR_FORMAT;
    }
    memcpy(settings->device, device, sizeof(settings->device));
    for (uint32_t r = 0; r < world; r++) {
        members[r].local_rank = (int32_t)msg_read_number(&reader, 4);
        members[r].node_id = msg_read_number(&reader, 8);
        members[r].shm_id = msg_read_number(&reader, 8);
    }
    return read_end(&reader);
}

void tw_msg_blobs_write(const tw_msg_blob_t *blobs, uint32_t n_blobs, tw_msg_writer_t *out)
{
    write_number(out, n_blobs, 4);
    for (uint32_t i = 0; i < n_blobs; i++) {
        write_number(out, blobs[i].bytes, 4);
        tw_msg_write(out, blobs[i].data, blobs[i].bytes);
    }
}

tw_status_t tw_msg_blobs_parse(const uint8_t *in, size_t bytes, uint32_t max, tw_msg_blob_t *blobs,
                               uint32_t *n_blobs)
{
    reader_t reader = {in, bytes, 0};
    const uint32_t n = (uint32_t)msg_read_number(&reader, 4);
    if (reader.failed || n > max) {
        return TW_ERR_FORMAT;
    }
    for (uint32_t i = 0; i < n; i++) {
        blobs[i].bytes = (uint32_t)msg_read_number(&reader, 4);
        blobs[i].data = msg_read_bytes(&reader, blobs[i].bytes);
    }
    *n_blobs = n;
    return read_end(&reader);
}

void tw_msg_notice_write(int32_t number, const char *text, tw_msg_writer_t *out)
{
    write_number(out, (uint32_t)number, 4);
    tw_msg_write(out, text, strnlen(text, TW_MSG_TEXT_BYTES));
}

tw_status_t tw_msg_notice_parse(const uint8_t *in, size_t bytes, tw_msg_notice_t *notice)
{
    reader_t reader = {in, bytes, 0};
    notice->number = (int32_t)msg_read_number(&reader, 4);
    if (reader.failed || reader.left > TW_MSG_TEXT_BYTES) {
        return TW_ERR_FORMAT;
    }
    for (size_t i = 0; i < reader.left; i++) {
        const uint8_t byte = reader.data[i];
        notice->text[i] = byte >= ' ' && byte < 127 ? (char)byte : '?';
    }
    notice->text[reader.left] = '\0';
    return TW_OK;
}

void tw_msg_heartbeat_write(const tw_msg_heartbeat_t *heartbeat, tw_msg_writer_t *out)
{
    write_number(out, heartbeat->late_ms, 4);
    tw_msg_write(out, heartbeat->heard, heartbeat->heard_bytes);
}

tw_status_t tw_msg_heartbeat_parse(const uint8_t *in, size_t bytes, tw_msg_heartbeat_t *heartbeat)
{
    reader_t reader = {in, bytes, 0};
    heartbeat->late_ms = bytes > 0 ? (uint32_t)msg_read_number(&reader, 4) : 0;
    heartbeat->heard_bytes = reader.left < TW_MSG_HEARD_MAX ? (uint32_t)reader.left : TW_MSG_HEARD_MAX;
    heartbeat->heard = msg_read_bytes(&reader, heartbeat->heard_bytes);
    return read_end(&reader);
}

void tw_msg_goodbye_write(const uint64_t *counts, uint32_t world, tw_msg_writer_t *out)
{
    write_number(out, world, 4);
    for (uint32_t r = 0; r < world; r++) {
        write_number(out, counts[r], 8);
    }
}

tw_status_t tw_msg_goodbye_parse(const uint8_t *in, size_t bytes, uint32_t world, uint64_t *counts)
{
    reader_t reader = {in, bytes, 0};
    if (msg_read_number(&reader, 4) != world) {
        return TW_ERR_FORMAT;
    }
    for (uint32_t r = 0; r < world; r++) {
        counts[r] = msg_read_number(&reader, 8);
    }
    return read_end(&reader);
}

void tw_msg_gone_write(uint32_t rank, uint64_t count, tw_msg_writer_t *out)
{
    write_number(out, rank, 4);
    write_number(out, count, 8);
}

tw_status_t tw_msg_gone_parse(const uint8_t *in, size_t bytes, uint32_t *rank, uint64_t *count)
{
    reader_t reader = {in, bytes, 0};
    *rank = (uint32_t)msg_read_number(&reader, 4);
    *count = msg_read_number(&reader, 8);
    return read_end(&reader);
}
