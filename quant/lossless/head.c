/* What stands before the blocks: written, and read back without trust. */
#include "quant/lossless/value.h"

#define GROUP TW_LOSSLESS_GROUP
#define SCALES_WIDTH_MAX 12
#define CLASSES_WIDTH_MAX 3

static uint32_t width_of(uint32_t range)
{
    return range ? 32u - (uint32_t)__builtin_clz(range) : 0;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* ---- out -------------------------------------------------------------------------------------------------------- */

/* The lowest of a group, and how many bits the others need above it. */
static int32_t lowest_of(const int16_t *values, size_t n, uint32_t *width)
{
    int32_t low = values[0], high = values[0];
    for (size_t i = 1; i < n; i++) {
        low = values[i] < low ? values[i] : low;
        high = values[i] > high ? values[i] : high;
    }
    *width = width_of((uint32_t)(high - low));
    return low;
}

size_t tw_lossless_scales_bytes(const int16_t *scales, size_t n)
{
    size_t bytes = 0;
    for (size_t i = 0; i < n; i += GROUP) {
        uint32_t width;
        lowest_of(scales + i, smaller(GROUP, n - i), &width);
        bytes += 3 + 4 * (size_t)width;
    }
    return bytes;
}

/* Where to write, and whether all of it fitted so far. */
typedef struct {
    uint8_t *at;
    const uint8_t *end;
    int fits;
} target_t;

static void put(target_t *target, const void *data, size_t bytes)
{
    target->fits = target->fits && bytes <= (size_t)(target->end - target->at);
    if (target->fits) {
        memcpy(target->at, data, bytes);
        target->at += bytes;
    }
}

static void put_group(target_t *target, const int16_t *values, size_t n, int classes)
{
    uint32_t width;
    int32_t low = lowest_of(values, n, &width);
    if (classes) {
        uint8_t both = (uint8_t)(low | (int32_t)width << 4);
        put(target, &both, 1);
    } else {
        int16_t low16 = (int16_t)low;
        uint8_t width8 = (uint8_t)width;
        put(target, &low16, sizeof(low16));
        put(target, &width8, 1);
    }
    for (uint32_t b = 0; b < width; b++) {
        uint32_t word = 0;
        for (size_t i = 0; i < n; i++) {
            word |= (uint32_t)(((values[i] - low) >> b) & 1) << i;
        }
        put(target, &word, sizeof(word));
    }
}

static void put_scales(target_t *target, const int16_t *scales, size_t n)
{
    for (size_t i = 0; i < n; i += GROUP) {
        put_group(target, scales + i, smaller(GROUP, n - i), 0);
    }
}

static void put_zeros(target_t *target, const uint16_t *rows, size_t n)
{
    for (size_t r = 0; r < n; r += 8) {
        uint8_t bits = 0;
        for (size_t i = 0; i < smaller(8, n - r); i++) {
            bits |= (uint8_t)((rows[r + i] == TW_LOSSLESS_DEAD) << i);
        }
        put(target, &bits, 1);
    }
}

/* Scales or classes of the rows that are not all zeros. */
static void put_rows(target_t *target, const uint16_t *rows, size_t n, int classes)
{
    int16_t group[GROUP];
    size_t in_group = 0;
    for (size_t r = 0; r < n; r++) {
        if (rows[r] == TW_LOSSLESS_DEAD) {
            continue;
        }
        int32_t scale = (int32_t)(rows[r] & TW_LOSSLESS_SCALE_MASK) - TW_LOSSLESS_BIAS;
        group[in_group++] = (int16_t)(classes ? rows[r] >> TW_LOSSLESS_CLASS_SHIFT : scale);
        if (in_group == GROUP) {
            put_group(target, group, in_group, classes);
            in_group = 0;
        }
    }
    if (in_group) {
        put_group(target, group, in_group, classes);
    }
}

uint8_t *tw_lossless_head_write(const tw_quant_lossless_t *codec, uint8_t *at, const uint8_t *end)
{
    const tw_lossless_shape_t *shape = &codec->shape;
    tw_lossless_head_t head = {.n_pieces = (uint32_t)shape->n_pieces, .classes = codec->classes};
    target_t target = {at, end, 1};
    put(&target, &head, sizeof(head));
    put(&target, shape->pieces, shape->n_pieces * sizeof(*shape->pieces));
    const uint16_t *rows = shape->rows;
    const int16_t *columns = shape->columns;
    for (size_t p = 0; p < shape->n_pieces; p++) {
        const tw_lossless_piece_t *piece = &shape->pieces[p];
        size_t n_rows = tw_lossless_piece_rows(piece);
        if (piece->flags & TW_LOSSLESS_FLAG_ZEROS) {
            put_zeros(&target, rows, n_rows);
        }
        if (piece->flags & TW_LOSSLESS_FLAG_SCALES) {
            put_rows(&target, rows, n_rows, 0);
        }
        if (piece->flags & TW_LOSSLESS_FLAG_CLASSES) {
            put_rows(&target, rows, n_rows, 1);
        }
        if (piece->flags & TW_LOSSLESS_FLAG_COLUMNS) {
            put_scales(&target, columns, piece->row_elems);
            columns += piece->row_elems;
        }
        rows += n_rows;
    }
    for (size_t c = 0; c < TW_LOSSLESS_CLASSES; c++) {
        if (codec->classes >> c & 1) {
            put(&target, &codec->tables[c], sizeof(codec->tables[c]));
        }
    }
    if ((target.at - at) % 2) {
        put(&target, "", 1);
    }
    return target.fits ? target.at : NULL;
}

/* ---- in --------------------------------------------------------------------------------------------------------- */

/* Bytes not yet read, and whether something was wrong with those that were. */
typedef struct {
    const uint8_t *at, *end;
    int bad;
} source_t;

/* The next bytes, or zeros where they are missing. */
static void take(source_t *source, void *data, size_t bytes)
{
    source->bad = source->bad || bytes > (size_t)(source->end - source->at);
    if (source->bad) {
        memset(data, 0, bytes);
        return;
    }
    memcpy(data, source->at, bytes);
    source->at += bytes;
}

/* Scales, or classes, all of them in a range. */
static void take_group(source_t *source, int16_t *values, size_t n, int classes)
{
    int16_t low;
    uint8_t width;
    if (classes) {
        take(source, &width, 1);
        low = width & 15;
        width >>= 4;
    } else {
        take(source, &low, sizeof(low));
        take(source, &width, 1);
    }
    source->bad = source->bad || width > (classes ? CLASSES_WIDTH_MAX : SCALES_WIDTH_MAX);
    int32_t added[GROUP] = {0};
    for (uint32_t b = 0; b < width && !source->bad; b++) {
        uint32_t word;
        take(source, &word, sizeof(word));
        for (size_t i = 0; i < n; i++) {
            added[i] |= (int32_t)(word >> i & 1) << b;
        }
    }
    int32_t least = classes ? 0 : -TW_LOSSLESS_SCALE_MAX;
    int32_t most = classes ? TW_LOSSLESS_CLASSES - 1 : TW_LOSSLESS_SCALE_MAX;
    for (size_t i = 0; i < n; i++) {
        int32_t value = low + added[i];
        source->bad = source->bad || value < least || value > most;
        values[i] = (int16_t)(source->bad ? 0 : value);
    }
}

static void take_zeros(source_t *source, uint16_t *rows, size_t n)
{
    for (size_t r = 0; r < n; r += 8) {
        uint8_t bits;
        take(source, &bits, 1);
        for (size_t i = 0; i < smaller(8, n - r); i++) {
            rows[r + i] = bits >> i & 1 ? TW_LOSSLESS_DEAD : rows[r + i];
        }
    }
}

static size_t live_rows(const uint16_t *rows, size_t n)
{
    size_t live = 0;
    for (size_t r = 0; r < n; r++) {
        live += rows[r] != TW_LOSSLESS_DEAD;
    }
    return live;
}

static void take_rows(source_t *source, uint16_t *rows, size_t n, int classes)
{
    int16_t group[GROUP];
    size_t left = live_rows(rows, n), in_group = 0, at = 0;
    for (size_t r = 0; r < n && !source->bad; r++) {
        if (rows[r] == TW_LOSSLESS_DEAD) {
            continue;
        }
        if (at == in_group) {
            in_group = smaller(GROUP, left);
            left -= in_group;
            at = 0;
            take_group(source, group, in_group, classes);
        }
        if (classes) {
            rows[r] = (uint16_t)((rows[r] & TW_LOSSLESS_SCALE_MASK) | group[at++] << TW_LOSSLESS_CLASS_SHIFT);
        } else {
            rows[r] = (uint16_t)((rows[r] & ~(uint32_t)TW_LOSSLESS_SCALE_MASK) |
                                 (uint32_t)(group[at++] + TW_LOSSLESS_BIAS));
        }
    }
}

/* What a piece says of itself, but for its sizes. */
static int is_piece(const tw_lossless_piece_t *piece)
{
    int columns_fit = !(piece->flags & TW_LOSSLESS_FLAG_COLUMNS) || piece->row_elems <= piece->n_elems;
    return piece->n_elems && piece->row_elems >= TW_LOSSLESS_ROW_MIN && piece->first < piece->row_elems &&
           piece->flags <= TW_LOSSLESS_FLAGS && columns_fit && piece->row_class < TW_LOSSLESS_CLASSES &&
           piece->scale <= TW_LOSSLESS_SCALE_MAX && piece->scale >= -TW_LOSSLESS_SCALE_MAX;
}

/* The pieces, which have n_elems together; counts rows and columns and makes room for them. */
static tw_status_t take_pieces(source_t *source, tw_lossless_shape_t *shape, size_t n_pieces, size_t n_elems)
{
    size_t n = 0, n_rows = 0, n_columns = 0;
    shape->n_pieces = shape->n_rows = shape->n_columns = 0;
    source->bad = source->bad || n_pieces > (size_t)(source->end - source->at) / sizeof(*shape->pieces);
    if (source->bad) {
        return TW_OK;
    }
    TW_TRY(tw_lossless_reserve(shape, n_pieces, 0, 0));
    take(source, shape->pieces, n_pieces * sizeof(*shape->pieces));
    for (size_t p = 0; p < n_pieces && !source->bad; p++) {
        const tw_lossless_piece_t *piece = &shape->pieces[p];
        source->bad = !is_piece(piece) || piece->n_elems > n_elems - n;
        if (!source->bad) {
            n += piece->n_elems;
            n_rows += tw_lossless_piece_rows(piece);
            n_columns += piece->flags & TW_LOSSLESS_FLAG_COLUMNS ? piece->row_elems : 0;
        }
    }
    source->bad = source->bad || n != n_elems;
    if (source->bad) {
        return TW_OK;
    }
    TW_TRY(tw_lossless_reserve(shape, 0, n_rows, n_columns));
    shape->n_pieces = n_pieces;
    shape->n_rows = n_rows;
    shape->n_columns = n_columns;
    return TW_OK;
}

static void take_piece(source_t *source, const tw_lossless_piece_t *piece, uint16_t *rows, int16_t *columns)
{
    size_t n_rows = tw_lossless_piece_rows(piece);
    uint16_t row =
        (uint16_t)((piece->scale + TW_LOSSLESS_BIAS) | piece->row_class << TW_LOSSLESS_CLASS_SHIFT);
    for (size_t r = 0; r < n_rows; r++) {
        rows[r] = row;
    }
    if (piece->flags & TW_LOSSLESS_FLAG_ZEROS) {
        take_zeros(source, rows, n_rows);
    }
    if (piece->flags & TW_LOSSLESS_FLAG_SCALES) {
        take_rows(source, rows, n_rows, 0);
    }
    if (piece->flags & TW_LOSSLESS_FLAG_CLASSES) {
        take_rows(source, rows, n_rows, 1);
    }
    for (size_t c = 0; piece->flags & TW_LOSSLESS_FLAG_COLUMNS && c < piece->row_elems; c += GROUP) {
        take_group(source, columns + c, smaller(GROUP, piece->row_elems - c), 0);
    }
}

/* The elements that are coded, and that their classes have tables. */
static void find_live(source_t *source, tw_quant_lossless_t *codec)
{
    tw_lossless_walk_t walk = tw_lossless_walk_begin(&codec->shape, NULL, 0, 0);
    tw_lossless_run_t run;
    codec->shape.n_live = 0;
    while (tw_lossless_walk_next(&walk, SIZE_MAX, &run)) {
        if (run.value != TW_LOSSLESS_DEAD) {
            codec->shape.n_live += run.n;
            source->bad = source->bad || !(codec->classes >> (run.value >> TW_LOSSLESS_CLASS_SHIFT) & 1);
        }
    }
}

tw_status_t tw_lossless_head_read(tw_quant_lossless_t *codec, const uint8_t *src, size_t bytes,
                                  size_t n_elems, size_t *taken)
{
    tw_lossless_shape_t *shape = &codec->shape;
    source_t source = {src, src + bytes, 0};
    tw_lossless_head_t head;
    take(&source, &head, sizeof(head));
    source.bad = source.bad || head.zero[0] || head.zero[1] || head.zero[2];
    TW_TRY(take_pieces(&source, shape, head.n_pieces, n_elems));
    uint16_t *rows = shape->rows;
    int16_t *columns = shape->columns;
    for (size_t p = 0; p < shape->n_pieces && !source.bad; p++) {
        take_piece(&source, &shape->pieces[p], rows, columns);
        rows += tw_lossless_piece_rows(&shape->pieces[p]);
        columns += shape->pieces[p].flags & TW_LOSSLESS_FLAG_COLUMNS ? shape->pieces[p].row_elems : 0;
    }
    codec->classes = head.classes;
    for (size_t c = 0; c < TW_LOSSLESS_CLASSES; c++) {
        if (head.classes >> c & 1) {
            take(&source, &codec->tables[c], sizeof(codec->tables[c]));
        }
    }
    if ((source.at - src) % 2) {
        uint8_t zero;
        take(&source, &zero, 1);
        source.bad = source.bad || zero;
    }
    if (!source.bad) {
        find_live(&source, codec);
    }
    if (source.bad) {
        tw_error("quant: lossless_decode: bad scales or tables");
        return TW_ERR_FORMAT;
    }
    *taken = (size_t)(source.at - src);
    return TW_OK;
}
