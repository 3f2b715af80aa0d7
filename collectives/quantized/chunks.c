#include "collectives/quantized/chunks.h"

#include <stdlib.h>
#include <string.h>

#define PLAIN_UNIT ((size_t)TW_QUANT_BLOCK_MIN) /**< plain pieces have a multiple of this many elements */

int tw_args_lose_nothing(const tw_coll_args_t *args)
{
    int n_codecs = 0, n_losing = 0;

    for (size_t s = 0; s < args->n_segments; s++) {
        const tw_quant_codec_t *codec = tw_segment_codec(args, &args->segments[s]);
        n_codecs += codec != NULL;
        n_losing += tw_quant_loses(codec) != TW_QUANT_LOSES_NOTHING;
    }
    return n_codecs > 0 && n_losing == 0;
}

/** Returns the least number of elements that is a whole number of frames of both codecs. All pieces but a
 *  segment's last are multiples of it. */
static size_t unit_elems(const tw_quant_codec_t *codec, const tw_quant_codec_t *inner)
{
    int in_blocks = tw_quant_form(codec) == TW_QUANT_BLOCKS;
    size_t a = in_blocks ? tw_quant_frame_elems(codec) : PLAIN_UNIT;
    size_t b = in_blocks && inner ? tw_quant_frame_elems(inner) : a;
    size_t x = a, y = b;

    while (y != 0) { /* x becomes the greatest common divisor */
        size_t rest = x % y;
        x = y;
        y = rest;
    }
    return a / x * b;
}

static tw_status_t out_of_memory(void)
{
    return tw_fail(TW_ERR_NO_MEMORY, "out of memory cutting an operation into chunks");
}

/** Cuts one shard into chunks. */
typedef struct cutter {
    tw_grid_t *grid;
    const tw_coll_args_t *args;
    size_t chunk_bytes;
    int codec;               /**< index in the grid's codecs, or TW_GRID_PLAIN: that of the next chunks */
    size_t unit, unit_bytes; /**< the smallest piece, in elements and in bytes of the message */
    size_t room;             /**< bytes left in the open chunk; 0: no chunk is open */
    size_t *offsets;         /**< [n_segments], where each segment's next shard begins */
} cutter_t;

static size_t bytes_of(const cutter_t *cut, size_t n_elems)
{
    const tw_quant_codec_t *codec = cut->codec == TW_GRID_PLAIN ? NULL : cut->grid->codecs[cut->codec];

    return tw_message_bytes(codec, cut->args->type, n_elems);
}

static tw_status_t open_chunk(cutter_t *cut)
{
    tw_grid_t *grid = cut->grid;

    if (!tw_grow(&grid->chunks, &grid->max_chunks, grid->n_chunks + 1, sizeof(*grid->chunks))) {
        return out_of_memory();
    }
    grid->chunks[grid->n_chunks++] = (tw_grid_chunk_t){.first_piece = grid->n_pieces, .codec = cut->codec};
    cut->room = cut->chunk_bytes > 0 ? cut->chunk_bytes : 1;
    return TW_OK;
}

static tw_status_t add_piece(cutter_t *cut, size_t segment, size_t first, size_t n_elems)
{
    tw_grid_t *grid = cut->grid;

    if (!tw_grow(&grid->pieces, &grid->max_pieces, grid->n_pieces + 1, sizeof(*grid->pieces))) {
        return out_of_memory();
    }
    grid->pieces[grid->n_pieces++] = (tw_grid_piece_t){segment, first, n_elems};
    tw_grid_chunk_t *chunk = &grid->chunks[grid->n_chunks - 1];
    chunk->n_pieces++;
    chunk->n_elems += n_elems;
    size_t bytes = bytes_of(cut, n_elems);
    cut->room -= bytes < cut->room ? bytes : cut->room;
    return TW_OK;
}

static tw_status_t cut_segment(cutter_t *cut, size_t segment, size_t first, size_t n_elems)
{
    while (n_elems > 0) {
        size_t fits = cut->room / cut->unit_bytes * cut->unit;
        size_t all_bytes = bytes_of(cut, n_elems);
        if (all_bytes <= cut->room) {
            fits = n_elems;
        } else if (fits == 0) { /* a new chunk takes at least one unit */
            TW_TRY(open_chunk(cut));
            size_t units = cut->room / cut->unit_bytes;
            fits = (units > 0 ? units : 1) * cut->unit;
        }
        fits = fits < n_elems ? fits : n_elems;
        TW_TRY(add_piece(cut, segment, first, fits));
        first += fits;
        n_elems -= fits;
    }
    return TW_OK;
}

/** Returns how many elements a segment has in shard `rank`. rank >= world: how many it receives. */
static size_t segment_count(const tw_coll_segment_t *segment, int world, int rank)
{
    if (rank >= world) {
        return segment->recv_counts[rank - world];
    }
    return segment->counts ? segment->counts[rank] : tw_coll_shard_elems(segment->n_elems, world, rank);
}

/** Cut the parts of a shard that have this codec, of all segments. */
static tw_status_t cut_codec(cutter_t *cut, int rank, int codec, const tw_quant_codec_t *inner)
{
    const tw_coll_args_t *args = cut->args;
    const tw_quant_codec_t *wanted = codec == TW_GRID_PLAIN ? NULL : cut->grid->codecs[codec];
    tw_status_t status = TW_OK;

    cut->codec = codec;
    cut->unit = unit_elems(wanted, inner);
    cut->unit_bytes = bytes_of(cut, cut->unit);
    cut->room = 0;
    for (size_t s = 0; s < args->n_segments && status == TW_OK; s++) {
        const tw_quant_codec_t *own = tw_segment_codec(args, &args->segments[s]);
        if (own != wanted && (!own || !wanted || !tw_quant_codec_equal(own, wanted))) {
            continue;
        }
        size_t count = segment_count(&args->segments[s], cut->grid->world, rank);
        status = cut_segment(cut, s, cut->offsets[s], count);
        cut->offsets[s] += count;
    }
    return status;
}

static tw_status_t cut_shard(cutter_t *cut, int rank)
{
    tw_grid_t *grid = cut->grid;
    tw_grid_shard_t *shard = &grid->shards[rank];
    tw_status_t status = TW_OK;

    shard->first_chunk = grid->n_chunks;
    for (size_t k = 0; k < grid->n_codecs && status == TW_OK; k++) {
        status = cut_codec(cut, rank, (int)k, cut->args->inner_codec);
    }
    status = status == TW_OK ? cut_codec(cut, rank, TW_GRID_PLAIN, NULL) : status;
    shard->n_chunks = grid->n_chunks - shard->first_chunk;
    if (shard->n_chunks > grid->shard_chunks) {
        grid->shard_chunks = shard->n_chunks;
    }
    return status;
}

/** Collect the different codecs of the segments. */
static void find_codecs(tw_grid_t *grid, const tw_coll_args_t *args)
{
    for (size_t s = 0; s < args->n_segments; s++) {
        const tw_quant_codec_t *codec = tw_segment_codec(args, &args->segments[s]);
        size_t k = 0;
        while (codec && k < grid->n_codecs && !tw_quant_codec_equal(grid->codecs[k], codec)) {
            k++;
        }
        if (codec && k == grid->n_codecs) {
            grid->codecs[grid->n_codecs++] = codec;
        }
    }
}

tw_status_t tw_grid_init(tw_grid_t *grid, const tw_coll_args_t *args, int world, size_t chunk_bytes)
{
    cutter_t cut = {.grid = grid, .args = args, .chunk_bytes = chunk_bytes};
    tw_status_t status = TW_OK;

    memset(grid, 0, sizeof(*grid));
    grid->world = world;
    grid->inner = args->inner_codec;
    grid->n_shards = args->op == TW_COLL_ALLTOALL ? 2 * world : world;
    grid->shards = calloc((size_t)grid->n_shards, sizeof(*grid->shards));
    grid->codecs = calloc(args->n_segments + 1, sizeof(*grid->codecs));
    cut.offsets = calloc(args->n_segments + 1, sizeof(*cut.offsets));
    if (!cut.offsets || !grid->shards || !grid->codecs) {
        status = out_of_memory();
    } else {
        find_codecs(grid, args);
    }
    for (int r = 0; r < grid->n_shards && status == TW_OK; r++) {
        if (r == world) { /* the shards from here on are received, in dst */
            memset(cut.offsets, 0, args->n_segments * sizeof(*cut.offsets));
        }
        status = cut_shard(&cut, r);
    }
    free(cut.offsets);
    if (status != TW_OK) {
        tw_grid_cleanup(grid);
    }
    return status;
}

void tw_grid_unpack_short(tw_grid_t *grid, size_t least_elems)
{
    for (size_t c = 0; c < grid->n_chunks; c++) {
        if (tw_quant_form(tw_grid_chunk_codec(grid, c)) == TW_QUANT_MESSAGE &&
            grid->chunks[c].n_elems < least_elems) {
            grid->chunks[c].codec = TW_GRID_PLAIN;
        }
    }
}

void tw_grid_cleanup(tw_grid_t *grid)
{
    free(grid->pieces);
    free(grid->chunks);
    free(grid->shards);
    free(grid->codecs);
    memset(grid, 0, sizeof(*grid));
}

size_t tw_grid_chunk_bytes(const tw_grid_t *grid, size_t chunk, const tw_quant_codec_t *codec, tw_type_t type)
{
    const tw_grid_chunk_t *at = &grid->chunks[chunk];
    size_t bytes = 0;

    if (tw_quant_form(codec) == TW_QUANT_MESSAGE) {
        return tw_quant_bound_bytes(codec, type, at->n_elems);
    }
    for (size_t i = 0; i < at->n_pieces; i++) {
        bytes += tw_message_bytes(codec, type, grid->pieces[at->first_piece + i].n_elems);
    }
    return bytes;
}

tw_coding_t tw_grid_coding(const tw_grid_t *grid, size_t chunk)
{
    const tw_quant_codec_t *codec = tw_grid_chunk_codec(grid, chunk);

    switch (tw_quant_form(codec)) {
    case TW_QUANT_BLOCKS:
        return TW_CODING_BLOCKS;
    case TW_QUANT_MESSAGE:
        return tw_quant_loses(codec) == TW_QUANT_LOSES_NOTHING ? TW_CODING_LOSSLESS : TW_CODING_LOSSY;
    default:
        return TW_CODING_NONE;
    }
}

const tw_quant_codec_t *tw_grid_form_codec(const tw_grid_t *grid, size_t chunk, tw_form_t form)
{
    return form == TW_FORM_PLAIN   ? NULL
           : form == TW_FORM_INNER ? grid->inner
                                   : tw_grid_chunk_codec(grid, chunk);
}

/* ---- places -------------------------------------------------------------------------------------------- */

/** Returns the address of element `first`, if there is one. Element base_first is at `base`. */
static char *locate(const char *base, size_t base_first, size_t first, size_t elem_bytes)
{
    return (char *)((uintptr_t)base + (first - base_first) * elem_bytes);
}

tw_grid_walk_t tw_grid_walk_start(const tw_grid_t *grid, size_t chunk, const tw_grid_tensor_t *tensors,
                                  tw_type_t type)
{
    return (tw_grid_walk_t){.grid = grid, .chunk = chunk, .tensors = tensors, .type = type, .in_type = type};
}

int tw_grid_walk_next(tw_grid_walk_t *walk, tw_grid_placed_t *piece)
{
    const tw_grid_chunk_t *chunk = &walk->grid->chunks[walk->chunk];
    size_t elem_bytes = tw_type_bytes(walk->type);

    if (walk->next == chunk->n_pieces) {
        return 0;
    }
    const tw_grid_piece_t *at = &walk->grid->pieces[chunk->first_piece + walk->next++];
    const tw_grid_tensor_t *tensor = &walk->tensors[at->segment];
    *piece = (tw_grid_placed_t){
        .at = {.src = locate(tensor->src, tensor->src_first, at->first, elem_bytes),
               .dst = locate(tensor->dst, tensor->dst_first, at->first, elem_bytes),
               .n_elems = at->n_elems,
               .tensor = tensor->tensor,
               .first_elem = tensor->first_elem + at->first},
        .in_at = walk->in_at,
        .out_at = walk->out_at,
        .row_elems = tensor->row_elems,
    };
    walk->in_at +=
        tw_message_bytes(tw_grid_form_codec(walk->grid, walk->chunk, walk->in), walk->in_type, at->n_elems);
    walk->out_at +=
        tw_message_bytes(tw_grid_form_codec(walk->grid, walk->chunk, walk->out), walk->type, at->n_elems);
    return 1;
}

size_t tw_grid_pieces(tw_grid_walk_t walk, char *cell, int from_src, tw_quant_message_segment_t *pieces)
{
    tw_grid_placed_t piece;
    size_t n = 0;

    while (tw_grid_walk_next(&walk, &piece)) {
        void *at = cell ? cell + piece.in_at : piece.at.dst;
        pieces[n++] = (tw_quant_message_segment_t){
            .src = !cell && from_src ? piece.at.src : at,
            .dst = at,
            .n_elems = piece.at.n_elems,
            .row_elems = piece.row_elems,
            .first_elem = piece.at.first_elem,
        };
    }
    return n;
}

/* ---- codecs -------------------------------------------------------------------------------------------- */

tw_status_t tw_codecs_get(tw_codecs_t *codecs, const tw_quant_codec_t *codec, tw_quant_t **out)
{
    for (size_t i = 0; i < codecs->n; i++) {
        if (tw_quant_codec_equal(tw_quant_codec_get(codecs->items[i]), codec)) {
            *out = codecs->items[i];
            return TW_OK;
        }
    }
    TW_FAIL_IF(!tw_grow(&codecs->items, &codecs->max, codecs->n + 1, sizeof(*codecs->items)),
               TW_ERR_NO_MEMORY, "out of memory for a codec");
    tw_quant_params_t params = {.codec = *codec, .mem = codecs->mem};
    tw_status_t status = tw_quant_create(&params, &codecs->items[codecs->n]);
    if (status == TW_OK) {
        *out = codecs->items[codecs->n++];
    }
    return status;
}

tw_status_t tw_codecs_messages(tw_codecs_t *codecs, const tw_quant_codec_t *codec,
                               tw_quant_messages_stream_t **out)
{
    for (size_t i = 0; i < codecs->n_messages; i++) {
        if (tw_quant_codec_equal(tw_quant_messages_stream_codec(codecs->messages[i]), codec)) {
            *out = codecs->messages[i];
            return TW_OK;
        }
    }
    TW_FAIL_IF(
        !tw_grow(&codecs->messages, &codecs->max_messages, codecs->n_messages + 1, sizeof(*codecs->messages)),
        TW_ERR_NO_MEMORY, "out of memory for a codec");
    TW_TRY(tw_quant_messages_stream_create(codec, codecs->mem, &codecs->messages[codecs->n_messages]));
    *out = codecs->messages[codecs->n_messages++];
    return TW_OK;
}

uint64_t tw_codecs_nonfinite_blocks(const tw_codecs_t *codecs)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < codecs->n; i++) {
        sum += tw_quant_nonfinite_blocks(codecs->items[i]);
    }
    return sum;
}

void tw_codecs_cleanup(tw_codecs_t *codecs)
{
    for (size_t i = 0; i < codecs->n; i++) {
        tw_quant_destroy(codecs->items[i]);
    }
    for (size_t i = 0; i < codecs->n_messages; i++) {
        tw_quant_messages_stream_destroy(codecs->messages[i]);
    }
    free(codecs->messages);
    free(codecs->items);
    memset(codecs, 0, sizeof(*codecs));
}
