/* Walks over elements: gives runs of rows and their addresses in segments. Also memory of shapes. */
#include "quant/lossless/value.h"

/* ---- shapes -------------------------------------------------------------------------------------------- */

/** Make room for n array elements. If the array must grow, its room at least doubles. */
static tw_status_t walk_reserve(void **array, size_t elem_bytes, size_t used, size_t n, size_t *room)
{
    if (n <= *room) {
        return TW_OK;
    }
    size_t wanted = n > 2 * *room ? n : 2 * *room;
    void *grown = tw_buffer_alloc(wanted * elem_bytes);
    TW_FAIL_IF(!grown, TW_ERR_NO_MEMORY, "quant: lossless: no memory for %zu rows or columns", wanted);
    if (used) {
        memcpy(grown, *array, used * elem_bytes);
    }
    tw_buffer_free(*array);
    *array = grown;
    *room = wanted;
    return TW_OK;
}

tw_status_t tw_lossless_reserve(tw_lossless_shape_t *shape, size_t n_pieces, size_t n_rows, size_t n_columns)
{
    TW_TRY(walk_reserve((void **)&shape->pieces, sizeof(*shape->pieces), shape->n_pieces, n_pieces,
                        &shape->pieces_room));
    TW_TRY(
        walk_reserve((void **)&shape->rows, sizeof(*shape->rows), shape->n_rows, n_rows, &shape->rows_room));
    return walk_reserve((void **)&shape->columns, sizeof(*shape->columns), shape->n_columns, n_columns,
                        &shape->columns_room);
}

tw_status_t tw_lossless_reserve_list(tw_quant_lossless_t *codec, size_t n)
{
    return walk_reserve((void **)&codec->list, sizeof(*codec->list), 0, n, &codec->list_room);
}

void tw_lossless_shape_cleanup(tw_lossless_shape_t *shape)
{
    tw_buffer_free(shape->pieces);
    tw_buffer_free(shape->rows);
    tw_buffer_free(shape->columns);
}

size_t tw_lossless_piece_rows(const tw_lossless_piece_t *piece)
{
    return ((size_t)piece->first + piece->n_elems + piece->row_elems - 1) / piece->row_elems;
}

/** Pieces without rows are joined, so at least every second piece is a matrix, of 1,024 elements or more. */
size_t tw_lossless_pieces_max(size_t n_elems)
{
    return n_elems / 512 + 1;
}

/** Each piece's first and last row may be short. */
size_t tw_lossless_rows_max(size_t n_elems)
{
    return n_elems / TW_LOSSLESS_ROW_MIN + 2 * tw_lossless_pieces_max(n_elems);
}

size_t tw_lossless_columns_max(size_t n_elems)
{
    return n_elems / TW_LOSSLESS_MATRIX_ROWS;
}

/* ---- walks --------------------------------------------------------------------------------------------- */

tw_lossless_walk_t tw_lossless_walk_begin(const tw_lossless_shape_t *shape,
                                          const tw_quant_lossless_segment_t *segments, int encoding,
                                          size_t elem_bytes)
{
    return (tw_lossless_walk_t){
        .shape = shape,
        .segment = segments,
        .encoding = encoding,
        .elem_bytes = elem_bytes,
        .in_row = shape->n_pieces ? shape->pieces[0].first : 0,
    };
}

/** Set *data to the address of the next elements, and return how many of `most` are contiguous. */
static size_t take_data(tw_lossless_walk_t *walk, size_t most, const uint8_t **data)
{
    *data = NULL;
    if (!walk->segment) {
        return most;
    }
    while (walk->in_segment == walk->segment->n_elems) {
        walk->segment++;
        walk->in_segment = 0;
    }
    const tw_quant_lossless_segment_t *segment = walk->segment;
    size_t left = segment->n_elems - walk->in_segment;
    *data =
        (const uint8_t *)(walk->encoding ? segment->src : segment->dst) + walk->in_segment * walk->elem_bytes;
    most = most < left ? most : left;
    walk->in_segment += most;
    return most;
}

/** Move past the last element of a piece. */
static void end_piece(tw_lossless_walk_t *walk, const tw_lossless_piece_t *piece)
{
    walk->columns += piece->flags & TW_LOSSLESS_FLAG_COLUMNS ? piece->row_elems : 0;
    walk->row++;
    walk->piece++;
    walk->in_piece = 0;
    walk->in_row = walk->piece < walk->shape->n_pieces ? walk->shape->pieces[walk->piece].first : 0;
}

/** Move past n elements of the current row. */
static void walk_advance(tw_lossless_walk_t *walk, size_t n)
{
    const tw_lossless_piece_t *piece = &walk->shape->pieces[walk->piece];
    walk->in_piece += n;
    walk->in_row += n;
    if (walk->in_piece == piece->n_elems) {
        end_piece(walk, piece);
    } else if (walk->in_row == piece->row_elems) {
        walk->row++;
        walk->in_row = 0;
    }
}

int tw_lossless_walk_next(tw_lossless_walk_t *walk, size_t most, tw_lossless_run_t *run)
{
    if (walk->piece == walk->shape->n_pieces) {
        return 0;
    }
    const tw_lossless_piece_t *piece = &walk->shape->pieces[walk->piece];
    size_t in_row = piece->row_elems - walk->in_row, in_piece = piece->n_elems - walk->in_piece;
    size_t n = in_row < in_piece ? in_row : in_piece;
    const int16_t *columns = walk->shape->columns + walk->columns + walk->in_row;
    run->row = walk->row;
    run->value = walk->shape->rows[walk->row];
    run->columns = piece->flags & TW_LOSSLESS_FLAG_COLUMNS ? columns : NULL;
    run->n = take_data(walk, n < most ? n : most, &run->data);
    walk_advance(walk, run->n);
    return 1;
}

size_t tw_lossless_walk_skip(tw_lossless_walk_t *walk, size_t most)
{
    if (walk->piece == walk->shape->n_pieces) {
        return 0;
    }
    const tw_lossless_piece_t *piece = &walk->shape->pieces[walk->piece];
    const uint8_t *data;
    size_t in_piece = piece->n_elems - walk->in_piece;
    size_t n = take_data(walk, in_piece < most ? in_piece : most, &data);
    size_t rows = (walk->in_row + n) / piece->row_elems;
    if (n == in_piece) {
        walk->row += rows - (walk->in_row + n == rows * piece->row_elems);
        end_piece(walk, piece);
    } else {
        walk->row += rows;
        walk->in_row += n - rows * piece->row_elems;
        walk->in_piece += n;
    }
    return n;
}
