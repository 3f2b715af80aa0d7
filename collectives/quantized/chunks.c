#include "collectives/quantized/chunks.h"

#include <stdlib.h>
#include <string.h>

/** Elements in which every part but a segment's last is counted: whole frames of both codecs. */
static size_t unit_elems(const tw_grid_params_t *params)
{
    size_t a = tw_quant_frame_elems(params->codec);
    size_t b = params->inner_codec != NULL ? tw_quant_frame_elems(params->inner_codec) : a;
    size_t x = a, y = b;

    while (y != 0) { /* x becomes the greatest common divisor */
        size_t rest = x % y;
        x = y;
        y = rest;
    }
    return a / x * b;
}

static tw_status_t grow(void **array, size_t *max, size_t n, size_t elem_bytes)
{
    if (n < *max) {
        return TW_OK;
    }
    size_t wanted = *max > 0 ? 2 * *max : 64;
    void *grown = realloc(*array, wanted * elem_bytes);
    if (grown == NULL) {
        tw_error("out of memory cutting an operation into chunks");
        return TW_ERR_NO_MEMORY;
    }
    *array = grown;
    *max = wanted;
    return TW_OK;
}

/** Where the shard being cut stands. */
typedef struct cutter {
    tw_grid_t *grid;
    const tw_grid_params_t *params;
    size_t unit, unit_bytes; /**< elements and encoded bytes of the smallest cut */
    size_t room;             /**< bytes still free in the open chunk; 0: none is open */
} cutter_t;

static tw_status_t open_chunk(cutter_t *cut)
{
    tw_grid_t *grid = cut->grid;
    tw_status_t status =
        grow((void **)&grid->chunks, &grid->max_chunks, grid->n_chunks, sizeof(*grid->chunks));

    if (status == TW_OK) {
        grid->chunks[grid->n_chunks++] = (tw_grid_chunk_t){.first_part = grid->n_parts};
        cut->room = cut->params->chunk_bytes > 0 ? cut->params->chunk_bytes : 1;
    }
    return status;
}

static tw_status_t add_part(cutter_t *cut, size_t segment, size_t first, size_t n_elems)
{
    tw_grid_t *grid = cut->grid;
    tw_status_t status = grow((void **)&grid->parts, &grid->max_parts, grid->n_parts, sizeof(*grid->parts));

    if (status != TW_OK) {
        return status;
    }
    grid->parts[grid->n_parts++] = (tw_grid_part_t){segment, first, n_elems};
    tw_grid_chunk_t *chunk = &grid->chunks[grid->n_chunks - 1];
    chunk->n_parts++;
    chunk->n_elems += n_elems;
    size_t bytes = tw_quant_encoded_bytes(cut->params->codec, n_elems);
    cut->room -= bytes < cut->room ? bytes : cut->room;
    return TW_OK;
}

/** The piece [first, first + n_elems) of a segment. */
static tw_status_t cut_piece(cutter_t *cut, size_t segment, size_t first, size_t n_elems)
{
    tw_status_t status = TW_OK;

    while (n_elems > 0 && status == TW_OK) {
        size_t fits = cut->room / cut->unit_bytes * cut->unit;
        size_t all_bytes = tw_quant_encoded_bytes(cut->params->codec, n_elems);
        if (all_bytes <= cut->room) {
            fits = n_elems;
        } else if (fits == 0) { /* a new chunk holds at least one unit */
            status = open_chunk(cut);
            size_t units = cut->room / cut->unit_bytes;
            fits = (units > 0 ? units : 1) * cut->unit;
        }
        fits = fits < n_elems ? fits : n_elems;
        if (status == TW_OK) {
            status = add_part(cut, segment, first, fits);
        }
        first += fits;
        n_elems -= fits;
    }
    return status;
}

static size_t segment_count(const tw_coll_segment_t *segment, int world, int rank)
{
    return segment->counts != NULL ? segment->counts[rank]
                                   : tw_coll_shard_elems(segment->n_elems, world, rank);
}

/** offsets: [n_segments] where each segment's next shard begins. */
static tw_status_t cut_shard(cutter_t *cut, int rank, size_t *offsets)
{
    tw_grid_t *grid = cut->grid;
    tw_grid_shard_t *shard = &grid->shards[rank];
    tw_status_t status = TW_OK;

    shard->first_chunk = grid->n_chunks;
    cut->room = 0;
    for (size_t s = 0; s < cut->params->n_segments && status == TW_OK; s++) {
        size_t count = segment_count(&cut->params->segments[s], cut->params->world, rank);
        status = cut_piece(cut, s, offsets[s], count);
        offsets[s] += count;
    }
    shard->n_chunks = grid->n_chunks - shard->first_chunk;
    if (shard->n_chunks > grid->shard_chunks) {
        grid->shard_chunks = shard->n_chunks;
    }
    return status;
}

tw_status_t tw_grid_init(tw_grid_t *grid, const tw_grid_params_t *params)
{
    cutter_t cut = {.grid = grid, .params = params, .unit = unit_elems(params)};
    size_t *offsets = calloc(params->n_segments + 1, sizeof(*offsets));
    tw_status_t status = TW_OK;

    memset(grid, 0, sizeof(*grid));
    grid->world = params->world;
    grid->shards = calloc((size_t)params->world, sizeof(*grid->shards));
    if (offsets == NULL || grid->shards == NULL) {
        tw_error("out of memory cutting an operation into chunks");
        status = TW_ERR_NO_MEMORY;
    }
    cut.unit_bytes = tw_quant_encoded_bytes(params->codec, cut.unit);
    for (int r = 0; r < params->world && status == TW_OK; r++) {
        status = cut_shard(&cut, r, offsets);
    }
    free(offsets);
    if (status != TW_OK) {
        tw_grid_cleanup(grid);
    }
    return status;
}

void tw_grid_cleanup(tw_grid_t *grid)
{
    free(grid->parts);
    free(grid->chunks);
    free(grid->shards);
    memset(grid, 0, sizeof(*grid));
}

size_t tw_grid_chunk_bytes(const tw_grid_t *grid, size_t chunk, const tw_quant_codec_t *codec, tw_type_t type)
{
    const tw_grid_chunk_t *at = &grid->chunks[chunk];
    size_t bytes = 0;

    if (codec == NULL) {
        return at->n_elems * tw_type_bytes(type);
    }
    for (size_t i = 0; i < at->n_parts; i++) {
        bytes += tw_quant_encoded_bytes(codec, grid->parts[at->first_part + i].n_elems);
    }
    return bytes;
}
