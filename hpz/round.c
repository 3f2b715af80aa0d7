#include "hpz/round.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define ALIGN_BYTES ((size_t)16)
/* A part that moves by more than its norm / FAR_PART is sent without loss. */
#define FAR_PART 8
#define CHUNK_ELEMS ((size_t)16384)

typedef struct part {
    size_t offset, n_elems, n_bytes;
    tw_type_t type;
    size_t encoded_bytes;
    uint64_t given; /* hash of the part's values in the last gather */
} part_t;

struct tw_hpz_round {
    tw_quant_t *quant;
    part_t *parts;
    size_t n_parts;
    size_t chunk_elems; /* most elements of one call of the codec; a multiple of its frames */
    float *given, *had; /* [chunk_elems] */
    uint32_t step;      /* number of calls, a seed of stochastic rounding */
};

static tw_status_t round_check(const tw_hpz_kept_params_t *params, size_t index)
{
    const tw_hpz_part_t *part = &params->parts[index];
    size_t size = tw_type_bytes(part->type);
    TW_FAIL_IF(!params->codec || part->type == TW_TYPE_BYTE || part->offset_bytes % size != 0 ||
                   params->run_bytes % size != 0,
               TW_ERR_INVALID, "unit %s: part %zu, at byte %zu of %zu, cannot be rounded%s", params->name,
               index, part->offset_bytes, params->run_bytes, params->codec ? "" : ": there is no codec");
    return TW_OK;
}

static tw_status_t take_parts(tw_hpz_round_t *round, const tw_hpz_kept_params_t *params)
{
    for (size_t i = 0; i < params->n_parts; i++) {
        const tw_hpz_part_t *part = &params->parts[i];
        if (!part->rounded) {
            continue;
        }
        TW_TRY(round_check(params, i));
        round->parts[round->n_parts++] =
            (part_t){.offset = part->offset_bytes,
                     .n_elems = part->n_elems,
                     .n_bytes = part->n_elems * tw_type_bytes(part->type),
                     .type = part->type,
                     .encoded_bytes = tw_quant_encoded_bytes(params->codec, part->n_elems)};
    }
    return TW_OK;
}

static tw_status_t round_make(tw_hpz_round_t *round, const tw_hpz_kept_params_t *params)
{
    if (params->codec) {
        tw_quant_params_t quant = {.codec = *params->codec, .mem = TW_MEM_HOST};
        TW_TRY(tw_quant_create(&quant, &round->quant));
        size_t frame = tw_quant_frame_elems(params->codec);
        round->chunk_elems = frame * (frame < CHUNK_ELEMS ? CHUNK_ELEMS / frame : 1);
    }
    round->parts = calloc(params->n_parts + 1, sizeof(*round->parts));
    round->given = tw_buffer_alloc(round->chunk_elems * sizeof(float));
    round->had = tw_buffer_alloc(round->chunk_elems * sizeof(float));
    TW_FAIL_IF(!round->parts || !round->given || !round->had, TW_ERR_NO_MEMORY,
               "unit %s: out of memory for %zu parts", params->name, params->n_parts);
    return take_parts(round, params);
}

tw_status_t tw_hpz_round_create(const tw_hpz_kept_params_t *params, tw_hpz_round_t **out)
{
    int any = 0;
    *out = NULL;
    for (size_t i = 0; i < params->n_parts; i++) {
        any |= params->parts[i].rounded;
    }
    if (!any) {
        return TW_OK;
    }
    tw_hpz_round_t *round = calloc(1, sizeof(*round));
    TW_FAIL_IF(!round, TW_ERR_NO_MEMORY, "unit %s: out of memory", params->name);
    tw_status_t status = round_make(round, params);
    if (status != TW_OK) {
        tw_hpz_round_destroy(round);
        return status;
    }
    *out = round;
    return TW_OK;
}

void tw_hpz_round_destroy(tw_hpz_round_t *round)
{
    if (round) {
        tw_quant_destroy(round->quant);
        tw_buffer_free(round->given);
        tw_buffer_free(round->had);
        free(round->parts);
        free(round);
    }
}

/** Return the offset of the first change in a message. */
static size_t head_bytes(const tw_hpz_round_t *round)
{
    return ((round->n_parts + 7) / 8 + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
}

size_t tw_hpz_round_bound_bytes(const tw_hpz_round_t *round)
{
    size_t bytes = round ? head_bytes(round) : 0;
    for (size_t i = 0; round && i < round->n_parts; i++) {
        bytes += round->parts[i].encoded_bytes;
    }
    return bytes;
}

/* ---- writing ------------------------------------------------------------------------------------------- */

/** Store the hash of the part's values. Return 1 if they are the same as in the last gather. */
static int is_given_again(part_t *part, const uint8_t *fresh)
{
    uint64_t before = part->given;
    part->given = XXH64(fresh + part->offset, part->n_bytes, 0);
    return part->given == before;
}

void tw_hpz_round_begin(tw_hpz_round_t *round, const uint8_t *fresh)
{
    for (size_t i = 0; i < round->n_parts; i++) {
        (void)is_given_again(&round->parts[i], fresh);
    }
}

/** Return the number of elements of a part's chunk, which begins at element `first` of the part. */
static size_t chunk_of(const tw_hpz_round_t *round, const part_t *part, size_t first)
{
    size_t rest = part->n_elems - first;
    return rest < round->chunk_elems ? rest : round->chunk_elems;
}

static size_t round_place_of(const part_t *part, size_t first)
{
    return part->offset + first * tw_type_bytes(part->type);
}

/** Sum the squares of a part's change, and of its values. The sums are not finite if any value is not. */
static void round_measure(tw_hpz_round_t *round, const part_t *part, const uint8_t *run, const uint8_t *fresh,
                          double *change, double *size)
{
    *change = *size = 0;
    for (size_t first = 0, n; first < part->n_elems; first += n) {
        n = chunk_of(round, part, first);
        tw_convert_to_fp32(part->type, fresh + round_place_of(part, first), round->given, n);
        tw_convert_to_fp32(part->type, run + round_place_of(part, first), round->had, n);
        for (size_t e = 0; e < n; e++) {
            double value = round->given[e], by = value - round->had[e];
            *change += by * by;
            *size += value * value;
        }
    }
}

/** Write the change of a part, and apply it to the replica. */
static tw_status_t round_part(tw_hpz_round_t *round, const part_t *part, uint8_t *run, const uint8_t *fresh,
                              uint8_t *at)
{
    tw_quant_args_t args = {.type = part->type, .factor = 1, .step = round->step};
    for (size_t first = 0, n; first < part->n_elems; first += n) {
        n = chunk_of(round, part, first);
        tw_convert_to_fp32(part->type, fresh + round_place_of(part, first), round->given, n);
        tw_quant_segment_t segment = {.src = round->given,
                                      .base = run + round_place_of(part, first),
                                      .dst = at,
                                      .n_elems = n,
                                      .tensor = (uint32_t)(part - round->parts),
                                      .first_elem = first};
        TW_TRY(tw_quant_encode_delta(round->quant, &args, &segment, 1));
        at += tw_quant_encoded_bytes(tw_quant_codec_get(round->quant), n);
    }
    return TW_OK;
}

static tw_status_t round_follow(const tw_hpz_round_t *round, const part_t *part, uint8_t *run,
                                const uint8_t *at)
{
    tw_quant_args_t args = {.type = part->type, .factor = 1};
    tw_quant_segment_t segment = {.src = at, .dst = run + part->offset, .n_elems = part->n_elems};
    return tw_quant_decode_apply(round->quant, &args, &segment, 1);
}

tw_status_t tw_hpz_round_encode(tw_hpz_round_t *round, uint8_t *run, uint8_t *fresh, int lossless,
                                uint8_t *message, size_t *bytes, size_t *rounded)
{
    uint8_t *at = message + head_bytes(round);
    memset(message, 0, head_bytes(round));
    *bytes = *rounded = 0;
    round->step++;
    for (size_t i = 0; i < round->n_parts; i++) {
        part_t *part = &round->parts[i];
        double change = 0, size = 0;
        int is_again = is_given_again(part, fresh);
        if (lossless) {
            continue;
        }
        if (!is_again) {
            round_measure(round, part, run, fresh, &change, &size);
            if (!isfinite(size) || !(change * FAR_PART * FAR_PART <= size)) {
                continue;
            }
        }
        if (change > 0) {
            TW_TRY(round_part(round, part, run, fresh, at));
            TW_TRY(round_follow(round, part, run, at));
            message[i / 8] |= (uint8_t)(1 << i % 8);
            at += part->encoded_bytes;
            *rounded += part->n_bytes;
        }
        memcpy(fresh + part->offset, run + part->offset, part->n_bytes);
    }
    *bytes = (size_t)(at - message);
    return TW_OK;
}

/* ---- reading ------------------------------------------------------------------------------------------- */

static int has_change(const uint8_t *message, size_t index)
{
    return message[index / 8] >> index % 8 & 1;
}

/** Return the length of the message that begins at `message`; 0 if the message is invalid. */
static size_t message_bytes(const tw_hpz_round_t *round, const uint8_t *message, size_t bytes)
{
    size_t head = head_bytes(round), expected = head;
    for (size_t i = 0; bytes >= head && i < 8 * head; i++) {
        if (has_change(message, i) && i >= round->n_parts) {
            return 0;
        }
        expected += has_change(message, i) ? round->parts[i].encoded_bytes : 0;
    }
    return bytes >= expected ? expected : 0;
}

tw_status_t tw_hpz_round_decode(tw_hpz_round_t *round, uint8_t *run, const uint8_t *message, size_t bytes,
                                size_t *used)
{
    const uint8_t *at = message + head_bytes(round);
    *used = message_bytes(round, message, bytes);
    TW_FAIL_IF(*used == 0, TW_ERR_FORMAT, "a message of rounded changes of %zu bytes makes no sense", bytes);
    for (size_t i = 0; i < round->n_parts; i++) {
        if (has_change(message, i)) {
            TW_TRY(round_follow(round, &round->parts[i], run, at));
            at += round->parts[i].encoded_bytes;
        }
    }
    return TW_OK;
}
