/* The encoder's analysis of tensors: makes pieces, computes scales of rows and columns, and classes, and
 * chooses tables from a sample. */
#include "quant/lossless/tails.h"

#define ROW_LEAST 64    /* shorter rows are joined, because a scale takes 5 bits */
#define ROW_UNKNOWN 128 /* row length for tensors without rows, and with fewer than 16 rows */

const uint16_t *tw_lossless_heads(tw_quant_lossless_t *codec, tw_type_t type, const uint8_t *data, size_t n)
{
    if (type == TW_TYPE_BF16) {
        return (const uint16_t *)data;
    }
    codec->backend->split(type, data, n, codec->heads, NULL);
    return codec->heads;
}

/* ---- pieces -------------------------------------------------------------------------------------------- */

static tw_lossless_piece_t piece_of(const tw_quant_lossless_segment_t *segment)
{
    size_t row = segment->row_elems;
    if (row && row < ROW_LEAST) {
        row *= (ROW_LEAST + row - 1) / row;
    }
    if (!row || segment->n_elems / row < TW_LOSSLESS_MATRIX_ROWS) {
        return (tw_lossless_piece_t){.n_elems = (uint32_t)segment->n_elems,
                                     .row_elems = ROW_UNKNOWN,
                                     .flags = TW_LOSSLESS_PIECE_UNKNOWN};
    }
    return (tw_lossless_piece_t){
        .n_elems = (uint32_t)segment->n_elems,
        .row_elems = (uint32_t)row,
        .first = (uint32_t)(segment->first_elem % row),
    };
}

tw_status_t tw_lossless_make_pieces(tw_lossless_shape_t *shape, const tw_quant_lossless_segment_t *segments,
                                    size_t n_segments)
{
    shape->n_pieces = shape->n_rows = shape->n_columns = shape->n_live = 0;
    for (size_t s = 0; s < n_segments; s++) {
        if (!segments[s].n_elems) {
            continue;
        }
        tw_lossless_piece_t piece = piece_of(&segments[s]), *last = NULL;
        if (shape->n_pieces) {
            last = &shape->pieces[shape->n_pieces - 1];
        }
        if (last && last->flags & piece.flags & TW_LOSSLESS_PIECE_UNKNOWN) {
            last->n_elems += piece.n_elems;
            continue;
        }
        TW_TRY(tw_lossless_reserve(shape, shape->n_pieces + 1, 0, 0));
        shape->pieces[shape->n_pieces++] = piece;
    }
    return TW_OK;
}

/* ---- rows and columns of a piece ----------------------------------------------------------------------- */

/* A piece that is being made. `begin` is a walk at its first element. */
typedef struct {
    tw_quant_lossless_t *codec;
    tw_type_t type;
    tw_lossless_piece_t *piece;
    tw_lossless_walk_t begin;
    size_t first_row, n_rows, step; /* columns use only every step-th row */
    uint64_t sum, live;             /* sum and number of magnitudes that are not 0 */
} making_t;

/** Take the next run of the piece. Returns 0 at its end. */
static int next_run(const making_t *making, tw_lossless_walk_t *walk, tw_lossless_run_t *run)
{
    return walk->piece == making->begin.piece && tw_lossless_walk_next(walk, TW_LOSSLESS_BLOCK_ELEMS, run);
}

static int all_zero(const uint8_t *data, size_t bytes)
{
    return !data[0] && memcmp(data, data + 1, bytes - 1) == 0;
}

/** Make room for the sums of columns and zero them. */
static tw_status_t begin_columns(making_t *making)
{
    tw_quant_lossless_t *codec = making->codec;
    size_t n = making->piece->row_elems;
    TW_TRY(tw_lossless_reserve(&codec->shape, 0, 0, codec->shape.n_columns + n));
    TW_TRY(tw_lossless_reserve_list(codec, n));
    if (codec->column_room < n) {
        tw_buffer_free(codec->column_sums);
        tw_buffer_free(codec->column_live);
        codec->column_sums = tw_buffer_alloc(n * sizeof(*codec->column_sums));
        codec->column_live = tw_buffer_alloc(n * sizeof(*codec->column_live));
        codec->column_room = codec->column_sums && codec->column_live ? n : 0;
        TW_FAIL_IF(!codec->column_room, TW_ERR_NO_MEMORY, "quant: lossless: no memory for %zu columns", n);
    }
    memset(codec->column_sums, 0, n * sizeof(*codec->column_sums));
    memset(codec->column_live, 0, n * sizeof(*codec->column_live));
    return TW_OK;
}

/** Add n elements of a row, from column `column` on, to the columns' sums. */
static void add_row(const making_t *making, const uint16_t *heads, size_t n, size_t column, int32_t scale)
{
    tw_quant_lossless_t *codec = making->codec;
    codec->backend->sum_columns(heads, n, scale, codec->column_sums + column, codec->column_live + column);
}

/** Set each row to its scale, the mean magnitude, or to DEAD. Add every step-th row's magnitudes minus its
 *  scale to the columns' sums. */
static void find_rows(making_t *making, int with_columns)
{
    const tw_lossless_backend_t *backend = making->codec->backend;
    uint16_t *rows = making->codec->shape.rows;
    tw_lossless_walk_t walk = making->begin;
    tw_lossless_run_t run;
    for (size_t r = making->first_row; r < making->first_row + making->n_rows; r++) {
        const uint16_t *heads = NULL;
        uint64_t sum = 0, live = 0, n = 0;
        size_t column = walk.in_row;
        int dead = 1;
        rows[r] = 0;
        while (walk.row == r && next_run(making, &walk, &run)) {
            heads = tw_lossless_heads(making->codec, making->type, run.data, run.n);
            backend->sum(heads, run.n, &sum, &live);
            dead = dead && !live && all_zero(run.data, run.n * walk.elem_bytes);
            n += run.n;
        }
        int64_t mean = tw_lossless_mean((int64_t)sum, (int64_t)live);
        if (with_columns && !dead && (r - making->first_row) % making->step == 0) {
            add_row(making, heads, n, column, (int32_t)mean);
        }
        rows[r] = dead ? TW_LOSSLESS_DEAD : tw_lossless_row_of(mean);
        making->piece->flags |= dead ? TW_LOSSLESS_FLAG_ZEROS : 0;
        making->sum += sum;
        making->live += live;
        making->codec->shape.n_live += dead ? 0 : n;
    }
}

/** Set each column's scale: the mean of its magnitudes minus their rows' scales. */
static void find_columns(const making_t *making)
{
    tw_quant_lossless_t *codec = making->codec;
    uint32_t shift = tw_lossless_column_shift(making->piece);
    int16_t *columns = codec->shape.columns + codec->shape.n_columns;
    for (size_t c = 0; c < making->piece->row_elems; c++) {
        columns[c] = tw_lossless_column_of(codec->column_sums[c], codec->column_live[c], shift);
    }
}

/** Skip to the next row whose index in the piece is a multiple of step. Returns 0 at the piece's end. */
static int skip_rows(const making_t *making, tw_lossless_walk_t *walk, size_t step)
{
    while (walk->piece == making->begin.piece && (walk->row - making->first_row) % step) {
        size_t rows = step - (walk->row - making->first_row) % step;
        tw_lossless_walk_skip(walk, rows * making->piece->row_elems - walk->in_row);
    }
    return walk->piece == making->begin.piece;
}

/** Sum up the distances of elements from their expectations, in every step-th row. deviations[rows][columns]:
 *  rows and columns are 1 if their scales are used. */
static void find_deviations(making_t *making, int with_columns, uint64_t deviations[2][2])
{
    tw_quant_lossless_t *codec = making->codec;
    const int16_t *columns = codec->shape.columns + codec->shape.n_columns;
    tw_lossless_walk_t walk = making->begin;
    tw_lossless_run_t run;
    size_t step = (making->n_rows + TW_LOSSLESS_TRIED_ON - 1) / TW_LOSSLESS_TRIED_ON;
    while (skip_rows(making, &walk, step)) {
        size_t column = walk.in_row;
        next_run(making, &walk, &run);
        if (run.value == TW_LOSSLESS_DEAD) {
            continue;
        }
        const uint16_t *heads = tw_lossless_heads(codec, making->type, run.data, run.n);
        uint64_t live = 0;
        for (int rows = 0; rows < 2; rows++) {
            int32_t scale = rows ? tw_lossless_scale_of(run.value) : making->piece->scale;
            codec->backend->deviation(heads, run.n, scale, NULL, &deviations[rows][0], &live);
            if (with_columns) {
                codec->backend->deviation(heads, run.n, scale, columns + column, &deviations[rows][1], &live);
            }
        }
    }
}

static size_t rows_bits(const making_t *making, int classes)
{
    const tw_quant_lossless_t *codec = making->codec;
    size_t n = tw_lossless_list_rows(codec, codec->shape.rows + making->first_row, making->n_rows, classes);
    return tw_lossless_list_bits(codec, codec->list, n,
                                 classes ? making->piece->row_class : making->piece->scale, 0);
}

/** Set the flags of those scales (of rows, of columns) that save more bits than their lists take. */
static void choose_scales(making_t *making, int with_columns)
{
    uint64_t deviations[2][2] = {{0}}, least = UINT64_MAX;
    tw_lossless_shape_t *shape = &making->codec->shape;
    find_deviations(making, with_columns, deviations);
    uint64_t bits[2] = {rows_bits(making, 0), 0};
    if (with_columns) {
        bits[1] = tw_lossless_list_bits(making->codec, shape->columns + shape->n_columns,
                                        making->piece->row_elems, 0, tw_lossless_column_shift(making->piece));
    }
    for (int rows = 0; rows < 2; rows++) {
        for (int columns = 0; columns <= with_columns; columns++) {
            uint64_t cost = tw_lossless_cost(making->live, deviations[rows][columns]) + (rows ? bits[0] : 0) +
                            (columns ? bits[1] : 0);
            if (cost < least) {
                least = cost;
                making->piece->flags &= (uint8_t) ~(TW_LOSSLESS_FLAG_SCALES | TW_LOSSLESS_FLAG_COLUMNS);
                making->piece->flags |= (uint8_t)((rows ? TW_LOSSLESS_FLAG_SCALES : 0) |
                                                  (columns ? TW_LOSSLESS_FLAG_COLUMNS : 0));
            }
        }
    }
}

/** Choose each row's class, or one for all rows if that takes fewer bits. Returns the walk after the
 *  piece. */
static tw_lossless_walk_t choose_classes(making_t *making)
{
    tw_quant_lossless_t *codec = making->codec;
    uint16_t *rows = codec->shape.rows;
    tw_lossless_walk_t walk = making->begin;
    tw_lossless_run_t run;
    uint64_t deviation = 0, own_cost = 0, bits[TW_LOSSLESS_CLASSES];
    for (uint32_t c = 0; c < TW_LOSSLESS_CLASSES; c++) {
        bits[c] = tw_lossless_class_bits(c);
    }
    for (size_t r = making->first_row; r < making->first_row + making->n_rows; r++) {
        uint64_t of_row = 0, live = 0;
        int dead = rows[r] == TW_LOSSLESS_DEAD;
        while (walk.row == r && next_run(making, &walk, &run)) {
            if (!dead) {
                const uint16_t *heads = tw_lossless_heads(codec, making->type, run.data, run.n);
                codec->backend->deviation(heads, run.n, tw_lossless_scale_of(run.value), run.columns, &of_row,
                                          &live);
            }
        }
        if (!dead) {
            uint32_t row_class = tw_lossless_class_of(of_row, live);
            rows[r] = (uint16_t)(rows[r] | row_class << TW_LOSSLESS_CLASS_SHIFT);
            own_cost += live * bits[row_class] >> 8;
            deviation += of_row;
        }
    }
    uint64_t one_cost = tw_lossless_one_class_cost(making->live, deviation);
    making->piece->row_class = (uint8_t)tw_lossless_class_of(deviation, making->live);
    if (one_cost > own_cost + rows_bits(making, 1)) {
        making->piece->flags |= TW_LOSSLESS_FLAG_CLASSES;
        return walk;
    }
    for (size_t r = making->first_row; r < making->first_row + making->n_rows; r++) {
        if (rows[r] != TW_LOSSLESS_DEAD) {
            rows[r] = tw_lossless_with_class(rows[r], making->piece->row_class);
        }
    }
    return walk;
}

/** Make a piece: its rows, columns, flags and classes. *end is the walk after the piece. */
static tw_status_t make_piece(making_t *making, tw_lossless_walk_t *end)
{
    tw_lossless_shape_t *shape = &making->codec->shape;
    tw_lossless_piece_t *piece = making->piece;
    int with_columns = !(piece->flags & TW_LOSSLESS_PIECE_UNKNOWN);
    piece->flags = piece->first ? TW_LOSSLESS_FLAG_FIRST : 0;
    making->step = (making->n_rows + TW_LOSSLESS_LOOKED_AT - 1) / TW_LOSSLESS_LOOKED_AT;
    if (with_columns) {
        TW_TRY(begin_columns(making));
    }
    find_rows(making, with_columns);
    piece->scale = (int16_t)tw_lossless_mean((int64_t)making->sum, (int64_t)making->live);
    if (with_columns) {
        find_columns(making);
    }
    choose_scales(making, with_columns);
    for (size_t r = making->first_row; r < making->first_row + making->n_rows; r++) {
        if (!(piece->flags & TW_LOSSLESS_FLAG_SCALES) && shape->rows[r] != TW_LOSSLESS_DEAD) {
            shape->rows[r] = tw_lossless_row_of(piece->scale);
        }
    }
    *end = choose_classes(making);
    shape->n_columns += piece->flags & TW_LOSSLESS_FLAG_COLUMNS ? piece->row_elems : 0;
    return TW_OK;
}

/* ---- the sample ---------------------------------------------------------------------------------------- */

static void count_tails(tw_quant_lossless_t *codec, const tw_lossless_run_t *run)
{
    const uint32_t *values = (const uint32_t *)(const void *)run->data;
    int32_t scale = tw_lossless_scale_of(run->value);
    for (size_t i = 0; i < run->n; i++) {
        int32_t expected = scale + (run->columns ? run->columns[i] : 0);
        uint32_t octave = tw_lossless_tail_octave((uint16_t)(values[i] >> 16), expected);
        codec->tail_sample[octave][tw_lossless_tail_symbol((uint16_t)values[i])]++;
    }
}

static void count_run(tw_quant_lossless_t *codec, tw_type_t type, const tw_lossless_run_t *run,
                      tw_lossless_counts_t *counts)
{
    const uint16_t *heads = tw_lossless_heads(codec, type, run->data, run->n);
    size_t row_class = run->value >> TW_LOSSLESS_CLASS_SHIFT;
    tw_lossless_counts_t *of_class = &counts[row_class];
    uint32_t(*sample)[TW_LOSSLESS_SAMPLE_BINS] = codec->sample[row_class];
    int32_t scale = tw_lossless_scale_of(run->value);
    uint16_t bins[TW_LOSSLESS_SAMPLE_RUN];
    codec->backend->bins(heads, run->n, scale, run->columns, bins);
    for (size_t i = 0; i < run->n; i++) {
        sample[i % 4][bins[i]]++;
    }
    for (size_t phase = 0; phase < TW_LOSSLESS_PHASES; phase++) {
        uint32_t all = (scale & 3) == (int32_t)phase ? 4 : 0;
        of_class->phases[phase] += (run->columns ? 1 : all) * (uint32_t)run->n;
    }
    of_class->n += (uint32_t)run->n;
    if (type == TW_TYPE_FP32) {
        count_tails(codec, run);
    }
}

/** Sum up the four counts of each bin into `counts`. */
static void sum_counts(const tw_quant_lossless_t *codec, tw_lossless_counts_t *counts)
{
    for (uint32_t c = 0; c < TW_LOSSLESS_CLASSES; c++) {
        const uint32_t(*sample)[TW_LOSSLESS_SAMPLE_BINS] = codec->sample[c];
        for (size_t i = 0; counts[c].n && i < 256; i++) {
            counts[c].above[i] = sample[0][i] + sample[1][i] + sample[2][i] + sample[3][i];
        }
        for (size_t i = 0; counts[c].n && i < 4; i++) {
            counts[c].zeros += sample[i][TW_LOSSLESS_ZEROS_BIN];
        }
    }
}

/** Count the sample: short runs at equal distances. */
static void take_sample(tw_quant_lossless_t *codec, tw_type_t type,
                        const tw_quant_lossless_segment_t *segments, tw_lossless_counts_t *counts)
{
    const tw_lossless_shape_t *shape = &codec->shape;
    size_t at = 0, distance = tw_lossless_sample_distance((uint32_t)shape->n_live);
    tw_lossless_walk_t walk = tw_lossless_walk_begin(shape, segments, 1, tw_type_bytes(type));
    tw_lossless_run_t run;
    while (walk.piece < shape->n_pieces) {
        size_t in_step = at % distance;
        int counted = in_step < TW_LOSSLESS_SAMPLE_RUN;
        size_t most = counted ? TW_LOSSLESS_SAMPLE_RUN - in_step : distance - in_step;
        if (!counted && !(shape->pieces[walk.piece].flags & TW_LOSSLESS_FLAG_ZEROS)) {
            at += tw_lossless_walk_skip(&walk, most);
            continue;
        }
        tw_lossless_walk_next(&walk, most, &run);
        if (run.value != TW_LOSSLESS_DEAD) {
            at += run.n;
            if (counted) {
                count_run(codec, type, &run, counts);
            }
        }
    }
    sum_counts(codec, counts);
}

/** Move all scales, and so all expectations, by the window. */
static void move_scales(tw_lossless_shape_t *shape, int window)
{
    for (size_t r = 0; r < shape->n_rows; r++) {
        if (shape->rows[r] != TW_LOSSLESS_DEAD) {
            shape->rows[r] = (uint16_t)(shape->rows[r] + window);
        }
    }
    for (size_t p = 0; p < shape->n_pieces; p++) {
        shape->pieces[p].scale = (int16_t)(shape->pieces[p].scale + window);
    }
}

/** Set the mask of the rows' classes, and clear the sample's counts. */
static void find_classes(tw_quant_lossless_t *codec)
{
    const tw_lossless_shape_t *shape = &codec->shape;
    codec->classes = 0;
    for (size_t r = 0; r < shape->n_rows; r++) {
        uint32_t row_class = shape->rows[r] >> TW_LOSSLESS_CLASS_SHIFT;
        codec->classes |= (uint8_t)(shape->rows[r] != TW_LOSSLESS_DEAD ? 1u << row_class : 0);
    }
    for (uint32_t c = 0; c < TW_LOSSLESS_CLASSES; c++) {
        memset(codec->sample[c], 0, codec->classes >> c & 1 ? sizeof(codec->sample[c]) : 0);
    }
    memset(codec->tail_sample, 0, sizeof(codec->tail_sample));
}

/** Choose the window, each class's table, and how tails are sent. */
static void choose_tables(tw_quant_lossless_t *codec, const tw_lossless_counts_t *counts)
{
    uint32_t above[256] = {0};
    uint64_t in_sample = 0;
    for (uint32_t c = 0; c < TW_LOSSLESS_CLASSES; c++) {
        in_sample += counts[c].n;
        for (size_t i = 0; counts[c].n && i < 256; i++) {
            above[i] += counts[c].above[i];
        }
    }
    codec->window = tw_lossless_window(above);
    codec->own = 0;
    for (uint32_t c = 0; c < TW_LOSSLESS_CLASSES; c++) {
        if (codec->classes >> c & 1) {
            int pays = tw_lossless_table_of(&counts[c], c, codec->window, codec->shape.n_live, in_sample,
                                            &codec->tables[c]);
            codec->own |= (uint8_t)((uint32_t)pays << c);
        }
    }
    uint32_t by_context[TW_LOSSLESS_TAIL_CONTEXTS][TW_LOSSLESS_TAIL_SYMBOLS];
    tw_lossless_tails_choose((const uint32_t(*)[TW_LOSSLESS_TAIL_SYMBOLS])codec->tail_sample, codec->window,
                             codec->shape.n_live, by_context, &codec->tails_are);
}

tw_status_t tw_lossless_find_scales(tw_quant_lossless_t *codec, tw_type_t type,
                                    const tw_quant_lossless_segment_t *segments, size_t n_segments)
{
    tw_lossless_shape_t *shape = &codec->shape;
    TW_TRY(tw_lossless_make_pieces(shape, segments, n_segments));
    size_t n_rows = 0;
    for (size_t p = 0; p < shape->n_pieces; p++) {
        n_rows += tw_lossless_piece_rows(&shape->pieces[p]);
    }
    TW_TRY(tw_lossless_reserve(shape, 0, n_rows, 0));
    TW_TRY(tw_lossless_reserve_list(codec, n_rows));
    tw_lossless_walk_t walk = tw_lossless_walk_begin(shape, segments, 1, tw_type_bytes(type));
    for (size_t p = 0; p < shape->n_pieces; p++) {
        making_t making = {
            .codec = codec,
            .type = type,
            .piece = &shape->pieces[p],
            .begin = walk,
            .first_row = shape->n_rows,
            .n_rows = tw_lossless_piece_rows(&shape->pieces[p]),
        };
        shape->n_rows += making.n_rows;
        TW_TRY(make_piece(&making, &walk));
    }
    return TW_OK;
}

tw_status_t tw_lossless_analyse(tw_quant_lossless_t *codec, tw_type_t type,
                                const tw_quant_lossless_segment_t *segments, size_t n_segments)
{
    tw_lossless_counts_t counts[TW_LOSSLESS_CLASSES];
    TW_TRY(tw_lossless_find_scales(codec, type, segments, n_segments));
    memset(counts, 0, sizeof(counts));
    find_classes(codec);
    take_sample(codec, type, segments, counts);
    choose_tables(codec, counts);
    move_scales(&codec->shape, codec->window);
    return TW_OK;
}
