#include "hpz/change.h"

#include <stdlib.h>
#include <string.h>

#define HEAD_WORDS 4
#define HEAD_BYTES (HEAD_WORDS * sizeof(uint32_t))
#define ALIGN_BYTES ((size_t)16)
/* bytes compared at a time; only where they differ are steps compared */
#define LOOK_BYTES ((size_t)4096)
#define NUMBER_BYTES_MAX 5 /* most bytes of a 32-bit number in the list */

/** A piece: a range of the run that differs. In steps. */
typedef struct piece {
    uint32_t first, n;
} piece_t;

/** A cut: the part of a piece that lies in one field. */
typedef struct cut {
    const tw_hpz_field_t *field;
    size_t offset, n_bytes; /**< place in the run */
} cut_t;

struct tw_hpz_change {
    tw_quant_delta_t *delta;
    tw_hpz_bytes_t pieces, cuts, segments;
    tw_hpz_bytes_t old_upper, new_upper; /**< upper halves of fp32 words, one after the other */
    size_t n_pieces, n_cuts;
};

/** Bytes of a message's list and of its three deltas; number of fp32 words, and of other bytes, in them. */
typedef struct sizes {
    size_t list, halves, uppers, bytes, n_words, n_bytes;
} sizes_t;

/* ---- memory -------------------------------------------------------------------------------------------- */

tw_status_t tw_hpz_bytes_need(tw_hpz_bytes_t *bytes, size_t n)
{
    if (n <= bytes->room) {
        return TW_OK;
    }
    tw_hpz_bytes_cleanup(bytes);
    bytes->data = tw_buffer_alloc(n);
    TW_FAIL_IF(!bytes->data, TW_ERR_NO_MEMORY, "out of memory for %zu bytes of changes", n);
    bytes->room = n;
    return TW_OK;
}

void tw_hpz_bytes_cleanup(tw_hpz_bytes_t *bytes)
{
    tw_buffer_free(bytes->data);
    *bytes = (tw_hpz_bytes_t){0};
}

tw_status_t tw_hpz_change_create(tw_hpz_change_t **out)
{
    tw_hpz_change_t *change = calloc(1, sizeof(*change));
    TW_FAIL_IF(!change, TW_ERR_NO_MEMORY, "out of memory for a coder of changes");
    tw_status_t status = tw_quant_delta_create(NULL, &change->delta);
    if (status != TW_OK) {
        free(change);
        return status;
    }
    *out = change;
    return TW_OK;
}

void tw_hpz_change_destroy(tw_hpz_change_t *change)
{
    if (change) {
        tw_quant_delta_destroy(change->delta);
        tw_hpz_bytes_cleanup(&change->pieces);
        tw_hpz_bytes_cleanup(&change->cuts);
        tw_hpz_bytes_cleanup(&change->segments);
        tw_hpz_bytes_cleanup(&change->old_upper);
        tw_hpz_bytes_cleanup(&change->new_upper);
        free(change);
    }
}

static piece_t *pieces_of(const tw_hpz_change_t *change)
{
    return (piece_t *)(void *)change->pieces.data;
}

static cut_t *cuts_of(const tw_hpz_change_t *change)
{
    return (cut_t *)(void *)change->cuts.data;
}

static size_t change_aligned(size_t bytes)
{
    return (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
}

/** Write zeros from `at`, `bytes` past an aligned address, to the next aligned address, and return it. */
static uint8_t *pad(uint8_t *at, size_t bytes)
{
    memset(at, 0, change_aligned(bytes) - bytes);
    return at + (change_aligned(bytes) - bytes);
}

static size_t n_steps(const tw_hpz_form_t *form)
{
    return (form->run_bytes + TW_HPZ_STEP_BYTES - 1) / TW_HPZ_STEP_BYTES;
}

static size_t most_pieces(const tw_hpz_form_t *form)
{
    return n_steps(form) / (TW_HPZ_GAP_STEPS + 1) + 1;
}

size_t tw_hpz_change_bound_bytes(const tw_hpz_form_t *form)
{
    /* A piece also has two numbers in the list, and is widened to whole elements at both ends. */
    size_t by_piece = 2 * NUMBER_BYTES_MAX + 2 * sizeof(float);
    return form->run_bytes + most_pieces(form) * by_piece + HEAD_BYTES + 3 * ALIGN_BYTES +
           2 * tw_quant_delta_bound_bytes(0) + tw_quant_delta8_bound_bytes(form->run_bytes) - form->run_bytes;
}

/* ---- what differs -------------------------------------------------------------------------------------- */

static void add_step(tw_hpz_change_t *change, size_t step)
{
    piece_t *last = change->n_pieces > 0 ? pieces_of(change) + change->n_pieces - 1 : NULL;
    if (last && step - (last->first + last->n) <= TW_HPZ_GAP_STEPS) {
        last->n = (uint32_t)(step + 1 - last->first);
    } else {
        pieces_of(change)[change->n_pieces++] = (piece_t){(uint32_t)step, 1};
    }
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static tw_status_t change_compare(tw_hpz_change_t *change, const tw_hpz_form_t *form, const uint8_t *run,
                                  const uint8_t *fresh)
{
    change->n_pieces = 0;
    TW_TRY(tw_hpz_bytes_need(&change->pieces, most_pieces(form) * sizeof(piece_t)));
    for (size_t look = 0; look < form->run_bytes; look += LOOK_BYTES) {
        size_t end = least(look + LOOK_BYTES, form->run_bytes);
        if (memcmp(run + look, fresh + look, end - look) == 0) {
            continue;
        }
        for (size_t at = look; at < end; at += TW_HPZ_STEP_BYTES) {
            if (memcmp(run + at, fresh + at, least(TW_HPZ_STEP_BYTES, end - at)) != 0) {
                add_step(change, at / TW_HPZ_STEP_BYTES);
            }
        }
    }
    return TW_OK;
}

/** Return the part of a field that overlaps [first, end) of the run, widened to whole elements. */
static cut_t cut_of(const tw_hpz_field_t *field, size_t first, size_t end)
{
    size_t elem = (size_t)field->coding, field_end = field->offset + field->n_bytes;
    size_t from = first > field->offset ? (first - field->offset) / elem * elem : 0;
    size_t to = (least(end, field_end) - field->offset + elem - 1) / elem * elem;
    return (cut_t){.field = field, .offset = field->offset + from, .n_bytes = to - from};
}

static tw_status_t make_cuts(tw_hpz_change_t *change, const tw_hpz_form_t *form)
{
    const tw_hpz_field_t *field = form->fields, *fields_end = form->fields + form->n_fields;
    change->n_cuts = 0;
    TW_TRY(tw_hpz_bytes_need(&change->cuts, (change->n_pieces + form->n_fields) * sizeof(cut_t)));
    for (size_t i = 0; i < change->n_pieces; i++) {
        piece_t piece = pieces_of(change)[i];
        size_t first = piece.first * TW_HPZ_STEP_BYTES, end = first + piece.n * TW_HPZ_STEP_BYTES;
        while (field < fields_end && field->offset + field->n_bytes <= first) {
            field++;
        }
        for (const tw_hpz_field_t *one = field; one < fields_end && one->offset < end; one++) {
            cuts_of(change)[change->n_cuts++] = cut_of(one, first, end);
        }
    }
    return tw_hpz_bytes_need(&change->segments, (change->n_cuts + 1) * sizeof(tw_quant_delta_segment_t));
}

static size_t cut_bytes(const tw_hpz_change_t *change, tw_hpz_coding_t coding)
{
    size_t bytes = 0;
    for (size_t i = 0; i < change->n_cuts; i++) {
        bytes += cuts_of(change)[i].field->coding == coding ? cuts_of(change)[i].n_bytes : 0;
    }
    return bytes;
}

static size_t change_state_of(const cut_t *cut)
{
    return cut->field->first_state + (cut->offset - cut->field->offset) / (size_t)cut->field->coding;
}

/* ---- the three deltas ---------------------------------------------------------------------------------- */

/** List all cuts with this coding as segments of a delta from `run` to `fresh`. fresh NULL: the segments are
 *  to be decoded in place. */
static size_t run_segments(const tw_hpz_change_t *change, tw_hpz_coding_t coding, uint8_t *run,
                           uint8_t *states, const uint8_t *fresh)
{
    tw_quant_delta_segment_t *segments = (void *)change->segments.data;
    size_t n = 0;
    for (size_t i = 0; i < change->n_cuts; i++) {
        const cut_t *cut = &cuts_of(change)[i];
        if (cut->field->coding == coding) {
            segments[n++] = (tw_quant_delta_segment_t){
                .base = run + cut->offset,
                .src = fresh ? fresh + cut->offset : NULL,
                .dst = run + cut->offset,
                .state = coding == TW_HPZ_AS_HALF ? states + change_state_of(cut) : NULL,
                .n_elems = cut->n_bytes / (size_t)coding};
        }
    }
    return n;
}

/** List the upper halves of fp32 words, which take_words has copied, as segments of a delta. */
static size_t upper_segments(const tw_hpz_change_t *change, uint8_t *states, int has_fresh)
{
    tw_quant_delta_segment_t *segments = (void *)change->segments.data;
    uint16_t *old_upper = (void *)change->old_upper.data, *new_upper = (void *)change->new_upper.data;
    size_t n = 0, at = 0;
    for (size_t i = 0; i < change->n_cuts; i++) {
        const cut_t *cut = &cuts_of(change)[i];
        size_t n_elems = cut->n_bytes / sizeof(uint32_t);
        if (cut->field->coding == TW_HPZ_AS_WORD) {
            segments[n++] = (tw_quant_delta_segment_t){.base = old_upper + at,
                                                       .src = has_fresh ? new_upper + at : NULL,
                                                       .dst = old_upper + at,
                                                       .state = states + change_state_of(cut),
                                                       .n_elems = n_elems};
            at += n_elems;
        }
    }
    return n;
}

/** Copy the upper halves of all fp32 words out of a run, and unless `lowers` is NULL their lower halves. */
static void take_words(const tw_hpz_change_t *change, const uint8_t *run, uint16_t *uppers, uint8_t *lowers)
{
    size_t at = 0;
    for (size_t i = 0; i < change->n_cuts; i++) {
        const cut_t *cut = &cuts_of(change)[i];
        size_t n_elems = cut->field->coding == TW_HPZ_AS_WORD ? cut->n_bytes / sizeof(uint32_t) : 0;
        for (size_t e = 0; e < n_elems; e++, at++) {
            uint32_t word;
            memcpy(&word, run + cut->offset + e * sizeof(word), sizeof(word));
            uint16_t lower = (uint16_t)word;
            uppers[at] = (uint16_t)(word >> 16);
            if (lowers) {
                memcpy(lowers + at * sizeof(lower), &lower, sizeof(lower));
            }
        }
    }
}

static void put_words(const tw_hpz_change_t *change, uint8_t *run, const uint16_t *uppers,
                      const uint8_t *lowers)
{
    size_t at = 0;
    for (size_t i = 0; i < change->n_cuts; i++) {
        const cut_t *cut = &cuts_of(change)[i];
        size_t n_elems = cut->field->coding == TW_HPZ_AS_WORD ? cut->n_bytes / sizeof(uint32_t) : 0;
        for (size_t e = 0; e < n_elems; e++, at++) {
            uint16_t lower;
            memcpy(&lower, lowers + at * sizeof(lower), sizeof(lower));
            uint32_t word = (uint32_t)uppers[at] << 16 | lower;
            memcpy(run + cut->offset + e * sizeof(word), &word, sizeof(word));
        }
    }
}

/* ---- writing ------------------------------------------------------------------------------------------- */

static uint8_t *write_number(uint8_t *at, uint32_t number)
{
    for (; number >= 0x80; number >>= 7) {
        *at++ = (uint8_t)(number | 0x80);
    }
    *at++ = (uint8_t)number;
    return at;
}

static size_t write_list(const tw_hpz_change_t *change, uint8_t *list)
{
    uint8_t *at = list;
    uint32_t end = 0;
    for (size_t i = 0; i < change->n_pieces; i++) {
        piece_t piece = pieces_of(change)[i];
        at = write_number(at, piece.first - end);
        at = write_number(at, piece.n);
        end = piece.first + piece.n;
    }
    return (size_t)(at - list);
}

static tw_status_t encode_segments(tw_hpz_change_t *change, size_t n, uint8_t *dst, size_t room,
                                   size_t *bytes)
{
    *bytes = 0;
    return n == 0 ? TW_OK
                  : tw_quant_delta_encode(change->delta, (void *)change->segments.data, n, dst, room, bytes);
}

static tw_status_t write_words(tw_hpz_change_t *change, uint8_t *run, uint8_t *states, const uint8_t *fresh,
                               uint8_t *at, sizes_t *sizes)
{
    size_t n_words = sizes->n_words;
    TW_TRY(tw_hpz_bytes_need(&change->old_upper, n_words * sizeof(uint16_t)));
    TW_TRY(tw_hpz_bytes_need(&change->new_upper, n_words * sizeof(uint16_t)));
    take_words(change, run, (void *)change->old_upper.data, NULL);
    take_words(change, fresh, (void *)change->new_upper.data, NULL);
    size_t n = upper_segments(change, states, 1);
    return encode_segments(change, n, at, tw_quant_delta_bound_bytes(n_words), &sizes->uppers);
}

static tw_status_t write_bytes(tw_hpz_change_t *change, uint8_t *run, const uint8_t *fresh, uint8_t *at,
                               sizes_t *sizes)
{
    size_t n = run_segments(change, TW_HPZ_AS_BYTES, run, NULL, fresh);
    return n == 0 ? TW_OK
                  : tw_quant_delta8_encode(change->delta, (void *)change->segments.data, n, at,
                                           tw_quant_delta8_bound_bytes(sizes->n_bytes), &sizes->bytes);
}

static sizes_t change_sizes_of(const tw_hpz_change_t *change)
{
    return (sizes_t){.n_words = cut_bytes(change, TW_HPZ_AS_WORD) / sizeof(uint32_t),
                     .n_bytes = cut_bytes(change, TW_HPZ_AS_BYTES)};
}

static tw_status_t write_all(tw_hpz_change_t *change, uint8_t *run, uint8_t *states, const uint8_t *fresh,
                             uint8_t *message, size_t *bytes)
{
    sizes_t sizes = change_sizes_of(change);
    size_t half_room = tw_quant_delta_bound_bytes(cut_bytes(change, TW_HPZ_AS_HALF) / sizeof(uint16_t));
    sizes.list = write_list(change, message + HEAD_BYTES);
    uint8_t *at = pad(message + HEAD_BYTES + sizes.list, HEAD_BYTES + sizes.list);
    size_t n = run_segments(change, TW_HPZ_AS_HALF, run, states, fresh);
    TW_TRY(encode_segments(change, n, at, half_room, &sizes.halves));
    at = pad(at + sizes.halves, sizes.halves);
    if (sizes.n_words > 0) {
        TW_TRY(write_words(change, run, states, fresh, at, &sizes));
        at = pad(at + sizes.uppers, sizes.uppers);
        take_words(change, fresh, (void *)change->new_upper.data, at);
        at += sizes.n_words * sizeof(uint16_t);
    }
    TW_TRY(write_bytes(change, run, fresh, at, &sizes));
    uint32_t head[HEAD_WORDS] = {(uint32_t)sizes.list, (uint32_t)sizes.halves, (uint32_t)sizes.uppers,
                                 (uint32_t)sizes.bytes};
    memcpy(message, head, sizeof(head));
    *bytes = (size_t)(at + sizes.bytes - message);
    return TW_OK;
}

static size_t change_follow(const tw_hpz_change_t *change, uint8_t *run, const uint8_t *fresh)
{
    size_t changed = 0;
    for (size_t i = 0; i < change->n_cuts; i++) {
        const cut_t *cut = &cuts_of(change)[i];
        memcpy(run + cut->offset, fresh + cut->offset, cut->n_bytes);
        changed += cut->n_bytes;
    }
    return changed;
}

tw_status_t tw_hpz_change_encode(tw_hpz_change_t *change, const tw_hpz_form_t *form, uint8_t *run,
                                 uint8_t *states, const uint8_t *fresh, uint8_t *message, size_t *bytes,
                                 size_t *changed)
{
    *bytes = *changed = 0;
    TW_TRY(change_compare(change, form, run, fresh));
    if (change->n_pieces == 0) {
        return TW_OK;
    }
    TW_TRY(make_cuts(change, form));
    TW_TRY(write_all(change, run, states, fresh, message, bytes));
    *changed = change_follow(change, run, fresh);
    return TW_OK;
}

/* ---- reading ------------------------------------------------------------------------------------------- */

/** Read a number of the list. Returns 0 if the number is not complete before `end`. */
static int change_read_number(const uint8_t **at, const uint8_t *end, uint32_t *number)
{
    *number = 0;
    for (int i = 0; i < NUMBER_BYTES_MAX && *at < end; i++) {
        uint8_t byte = *(*at)++;
        *number |= (uint32_t)(byte & 0x7f) << (7 * i);
        if (byte < 0x80) {
            return i < NUMBER_BYTES_MAX - 1 || byte < 0x10;
        }
    }
    return 0;
}

/** Read the list into pieces. Returns 0 if the list is invalid. */
static int read_list(tw_hpz_change_t *change, const tw_hpz_form_t *form, const uint8_t *list, size_t bytes)
{
    const uint8_t *end = list + bytes;
    uint64_t step = 0, most = n_steps(form);
    for (change->n_pieces = 0; list < end;) {
        uint32_t gap, n;
        if (!change_read_number(&list, end, &gap) || !change_read_number(&list, end, &n) || n == 0 ||
            (change->n_pieces > 0 && gap <= TW_HPZ_GAP_STEPS) || step + gap + n > most ||
            change->n_pieces == most_pieces(form)) {
            return 0;
        }
        pieces_of(change)[change->n_pieces++] = (piece_t){(uint32_t)(step + gap), n};
        step += (uint64_t)gap + n;
    }
    return change->n_pieces > 0;
}

static tw_status_t decode_segments(tw_hpz_change_t *change, size_t n, const uint8_t *src, size_t bytes)
{
    if ((n == 0) != (bytes == 0)) {
        return TW_ERR_FORMAT;
    }
    return n == 0 ? TW_OK
                  : tw_quant_delta_decode(change->delta, (void *)change->segments.data, n, src, bytes);
}

static tw_status_t read_words(tw_hpz_change_t *change, uint8_t *run, uint8_t *states, const uint8_t *at,
                              const sizes_t *sizes)
{
    TW_TRY(tw_hpz_bytes_need(&change->old_upper, sizes->n_words * sizeof(uint16_t)));
    uint16_t *uppers = (void *)change->old_upper.data;

    take_words(change, run, uppers, NULL);
    TW_TRY(decode_segments(change, upper_segments(change, states, 0), at, sizes->uppers));
    put_words(change, run, uppers, at + change_aligned(sizes->uppers));
    return TW_OK;
}

static tw_status_t change_read_bytes(tw_hpz_change_t *change, uint8_t *run, const uint8_t *at, size_t bytes)
{
    size_t n = run_segments(change, TW_HPZ_AS_BYTES, run, NULL, NULL);
    if ((n == 0) != (bytes == 0)) {
        return TW_ERR_FORMAT;
    }
    return n == 0 ? TW_OK
                  : tw_quant_delta8_decode(change->delta, (void *)change->segments.data, n, at, bytes);
}

/** Decode the deltas after the list. The list must have been read, and all lengths checked. */
static tw_status_t read_all(tw_hpz_change_t *change, uint8_t *run, uint8_t *states, const uint8_t *message,
                            const sizes_t *sizes)
{
    const uint8_t *at = message + change_aligned(HEAD_BYTES + sizes->list);
    TW_TRY(
        decode_segments(change, run_segments(change, TW_HPZ_AS_HALF, run, states, NULL), at, sizes->halves));
    at += change_aligned(sizes->halves);
    if (sizes->n_words > 0) {
        TW_TRY(read_words(change, run, states, at, sizes));
    }
    at += change_aligned(sizes->uppers) + sizes->n_words * sizeof(uint16_t);
    return change_read_bytes(change, run, at, sizes->bytes);
}

/** Read the start of a message: its lengths; and its list, into pieces and cuts. TW_ERR_FORMAT (silent): not
 *  valid for a message of `bytes` bytes. */
static tw_status_t change_read_head(tw_hpz_change_t *change, const tw_hpz_form_t *form,
                                    const uint8_t *message, size_t bytes, sizes_t *sizes)
{
    uint32_t head[HEAD_WORDS];
    if (bytes < HEAD_BYTES) {
        return TW_ERR_FORMAT;
    }
    memcpy(head, message, sizeof(head));
    if (head[0] > bytes - HEAD_BYTES) {
        return TW_ERR_FORMAT;
    }
    TW_TRY(tw_hpz_bytes_need(&change->pieces, most_pieces(form) * sizeof(piece_t)));
    if (!read_list(change, form, message + HEAD_BYTES, head[0])) {
        return TW_ERR_FORMAT;
    }
    TW_TRY(make_cuts(change, form));
    *sizes = change_sizes_of(change);
    sizes->list = head[0], sizes->halves = head[1], sizes->uppers = head[2], sizes->bytes = head[3];
    size_t expected = change_aligned(HEAD_BYTES + sizes->list) + change_aligned(sizes->halves) +
                      change_aligned(sizes->uppers) + sizes->n_words * sizeof(uint16_t) + sizes->bytes;
    return expected == bytes ? TW_OK : TW_ERR_FORMAT;
}

tw_status_t tw_hpz_change_decode(tw_hpz_change_t *change, const tw_hpz_form_t *form, uint8_t *run,
                                 uint8_t *states, const uint8_t *message, size_t bytes)
{
    sizes_t sizes;
    tw_status_t status = change_read_head(change, form, message, bytes, &sizes);
    if (status == TW_ERR_FORMAT) {
        tw_error("a message of changes of %zu bytes makes no sense", bytes);
    }
    status = status == TW_OK ? read_all(change, run, states, message, &sizes) : status;
    return status == TW_OK || status == TW_ERR_NO_MEMORY ? status : TW_ERR_FORMAT;
}
