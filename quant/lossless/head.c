/* Writes the head of a message, the part before the blocks, and reads it from untrusted bytes. */
#include "quant/lossless/model.h"

#define GROUP TW_LOSSLESS_GROUP
#define LONG_AFTER TW_LOSSLESS_LONG_AFTER
#define LONG_BITS TW_LOSSLESS_LONG_BITS
#define PIECE_BYTES_MIN 5

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/** Fold a list's values into codec->list, and choose *k: the number of bits of their mean, or one less.
 *  Returns the list's size in bits. */
static uint64_t fold(const tw_quant_lossless_t *codec, const int16_t *values, size_t n, int32_t centre,
                     uint32_t shift, uint32_t *k)
{
    const tw_lossless_backend_t *backend = codec->backend;
    uint16_t *folded = (uint16_t *)codec->list;
    *k = tw_lossless_list_k(n, backend->fold(values, n, centre, shift, folded));
    uint64_t bits = backend->folded_bits(folded, n, *k);
    uint64_t other = *k ? backend->folded_bits(folded, n, *k - 1) : UINT64_MAX;
    *k -= other < bits;
    return other < bits ? other : bits;
}

size_t tw_lossless_list_bits(const tw_quant_lossless_t *codec, const int16_t *values, size_t n,
                             int32_t centre, uint32_t shift)
{
    uint32_t k;
    return fold(codec, values, n, centre, shift, &k) + TW_LOSSLESS_LIST_K_BITS;
}

/* Where to write, and whether all has fitted so far. */
typedef struct {
    uint8_t *at;
    const uint8_t *end;
    uint64_t bits; /* bits to be written, the lowest first */
    uint32_t n_bits;
    int fits;
} target_t;

static void head_put(target_t *target, const void *data, size_t bytes)
{
    target->fits = target->fits && bytes <= (size_t)(target->end - target->at);
    if (target->fits) {
        memcpy(target->at, data, bytes);
        target->at += bytes;
    }
}

static void put_number(target_t *target, uint32_t number)
{
    for (;; number >>= 7) {
        uint8_t byte = (uint8_t)(number > 0x7f ? number | 0x80 : number);
        head_put(target, &byte, 1);
        if (number <= 0x7f) {
            return;
        }
    }
}

/** Write n <= 32 bits, the lowest first. */
static void put_bits(target_t *target, uint32_t bits, uint32_t n)
{
    target->bits |= (uint64_t)bits << target->n_bits;
    target->n_bits += n;
    if (target->n_bits >= 32) {
        uint32_t word = (uint32_t)target->bits;
        head_put(target, &word, sizeof(word));
        target->bits >>= 32;
        target->n_bits -= 32;
    }
}

/** Write the remaining bits, in whole bytes. */
static void end_bits(target_t *target)
{
    uint32_t word = (uint32_t)target->bits;
    head_put(target, &word, (target->n_bits + 7) / 8);
    target->bits = target->n_bits = 0;
}

static void put_list(const tw_quant_lossless_t *codec, target_t *target, const int16_t *values, size_t n,
                     int32_t centre, uint32_t shift)
{
    uint32_t k;
    const uint16_t *folded = (const uint16_t *)codec->list;
    fold(codec, values, n, centre, shift, &k);
    put_bits(target, k, TW_LOSSLESS_LIST_K_BITS);
    for (size_t first = 0; first < n; first += GROUP) {
        size_t end = smaller(first + GROUP, n);
        for (size_t i = first; i < end; i++) {
            uint32_t ones = folded[i] >> k;
            put_bits(target, (1u << smaller(ones, LONG_AFTER)) - 1,
                     (uint32_t)(ones < LONG_AFTER ? ones + 1 : LONG_AFTER));
        }
        for (size_t i = first; i < end && k; i++) {
            put_bits(target, folded[i] & ((1u << k) - 1), k);
        }
        for (size_t i = first; i < end; i++) {
            uint32_t ones = folded[i] >> k;
            if (ones >= LONG_AFTER) {
                put_bits(target, ones, LONG_BITS);
            }
        }
    }
}

static void put_zeros(target_t *target, const uint16_t *rows, size_t n)
{
    for (size_t r = 0; r < n; r += 8) {
        uint8_t bits = 0;
        for (size_t i = 0; i < smaller(8, n - r); i++) {
            bits |= (uint8_t)((rows[r + i] == TW_LOSSLESS_DEAD) << i);
        }
        head_put(target, &bits, 1);
    }
}

size_t tw_lossless_list_rows(const tw_quant_lossless_t *codec, const uint16_t *rows, size_t n, int classes)
{
    size_t live = 0;
    for (size_t r = 0; r < n; r++) {
        if (rows[r] != TW_LOSSLESS_DEAD) {
            int32_t scale = (int32_t)(rows[r] & TW_LOSSLESS_SCALE_MASK) - TW_LOSSLESS_BIAS;
            codec->list[live++] = (int16_t)(classes ? rows[r] >> TW_LOSSLESS_CLASS_SHIFT : scale);
        }
    }
    return live;
}

static void put_piece(target_t *target, const tw_lossless_piece_t *piece)
{
    uint8_t flags = (uint8_t)(piece->flags | piece->row_class << TW_LOSSLESS_FLAG_BITS);
    head_put(target, &flags, 1);
    put_number(target, piece->n_elems);
    put_number(target, piece->row_elems);
    if (piece->flags & TW_LOSSLESS_FLAG_FIRST) {
        put_number(target, piece->first);
    }
    head_put(target, &piece->scale, sizeof(piece->scale));
}

/** Write the lists of a piece: scales and classes of rows, scales of columns. */
static void put_scales(const tw_quant_lossless_t *codec, target_t *target, const tw_lossless_piece_t *piece,
                       const uint16_t *rows, const int16_t *columns)
{
    size_t n_rows = tw_lossless_piece_rows(piece);
    if (piece->flags & TW_LOSSLESS_FLAG_SCALES) {
        put_list(codec, target, codec->list, tw_lossless_list_rows(codec, rows, n_rows, 0), piece->scale, 0);
    }
    if (piece->flags & TW_LOSSLESS_FLAG_CLASSES) {
        put_list(codec, target, codec->list, tw_lossless_list_rows(codec, rows, n_rows, 1), piece->row_class,
                 0);
    }
    if (piece->flags & TW_LOSSLESS_FLAG_COLUMNS) {
        put_list(codec, target, columns, piece->row_elems, 0, tw_lossless_column_shift(piece));
    }
}

uint8_t *tw_lossless_head_write(const tw_quant_lossless_t *codec, uint8_t *at, const uint8_t *end)
{
    const tw_lossless_shape_t *shape = &codec->shape;
    tw_lossless_head_t head = {.window = (int8_t)(codec->window / 4), .own = codec->own};
    target_t target = {.at = at, .end = end, .fits = 1};
    head_put(&target, &head, TW_LOSSLESS_HEAD_BYTES);
    put_number(&target, (uint32_t)shape->n_pieces);
    const uint16_t *rows = shape->rows;
    const int16_t *columns = shape->columns;
    for (size_t p = 0; p < shape->n_pieces; p++) {
        put_piece(&target, &shape->pieces[p]);
    }
    for (size_t p = 0; p < shape->n_pieces; p++) {
        size_t n_rows = tw_lossless_piece_rows(&shape->pieces[p]);
        if (shape->pieces[p].flags & TW_LOSSLESS_FLAG_ZEROS) {
            put_zeros(&target, rows, n_rows);
        }
        rows += n_rows;
    }
    for (size_t c = 0; c < TW_LOSSLESS_CLASSES; c++) {
        if (codec->own >> c & 1) {
            head_put(&target, &codec->tables[c], sizeof(codec->tables[c]));
        }
    }
    if (codec->tails_are.tailed) {
        uint8_t n = (uint8_t)codec->tails_are.n_tables;
        head_put(&target, &n, 1);
        head_put(&target, codec->tails_are.tables, n * sizeof(*codec->tails_are.tables));
    }
    rows = shape->rows;
    for (size_t p = 0; p < shape->n_pieces; p++) {
        put_scales(codec, &target, &shape->pieces[p], rows, columns);
        rows += tw_lossless_piece_rows(&shape->pieces[p]);
        columns += shape->pieces[p].flags & TW_LOSSLESS_FLAG_COLUMNS ? shape->pieces[p].row_elems : 0;
    }
    end_bits(&target);
    if ((target.at - at) % 2) {
        head_put(&target, "", 1);
    }
    return target.fits ? target.at : NULL;
}

/* Unread bytes. `bad`: the bytes read so far are invalid, or a read went past the end. */
typedef struct {
    const uint8_t *at, *end;
    uint64_t bits; /* bits of bytes before `at` that have not been used, the lowest first */
    uint32_t n_bits;
    int bad;
} source_t;

/** Read the next bytes; zeros if they are missing. */
static void head_take(source_t *source, void *data, size_t bytes)
{
    source->bad = source->bad || bytes > (size_t)(source->end - source->at);
    if (source->bad) {
        memset(data, 0, bytes);
        return;
    }
    memcpy(data, source->at, bytes);
    source->at += bytes;
}

static uint32_t head_take_number(source_t *source)
{
    uint64_t number = 0;
    for (uint32_t shift = 0; shift < 35; shift += 7) {
        uint8_t byte;
        head_take(source, &byte, 1);
        number |= (uint64_t)(byte & 0x7f) << shift;
        if (byte <= 0x7f) {
            break;
        }
        source->bad = source->bad || shift == 28;
    }
    source->bad = source->bad || number > UINT32_MAX;
    return source->bad ? 0 : (uint32_t)number;
}

/** Fill source->bits with at least 32 bits, or with all that are left. */
static void look_ahead(source_t *source)
{
    while (source->n_bits <= 56 && source->at < source->end) {
        source->bits |= (uint64_t)*source->at++ << source->n_bits;
        source->n_bits += 8;
    }
}

static uint32_t take_bits(source_t *source, uint32_t n)
{
    look_ahead(source);
    source->bad = source->bad || source->n_bits < n;
    if (source->bad) {
        return 0;
    }
    uint32_t bits = (uint32_t)(source->bits & ((1ull << n) - 1));
    source->bits >>= n;
    source->n_bits -= n;
    return bits;
}

/** Read ones and the zero after them, and return the number of ones; or read LONG_AFTER ones. */
static uint32_t take_ones(source_t *source)
{
    look_ahead(source);
    uint32_t ones = (uint32_t)__builtin_ctzll(~source->bits | 1ull << LONG_AFTER);
    take_bits(source, ones < LONG_AFTER ? ones + 1 : LONG_AFTER);
    return ones;
}

/** End reading bits: bytes without a used bit become unread. Unused bits of the last byte must be 0. */
static void end_bits_in(source_t *source)
{
    source->at -= source->n_bits / 8;
    source->bad = source->bad || source->bits & ((1u << source->n_bits % 8) - 1);
    source->bits = source->n_bits = 0;
}

/** Read a group of n values of a list. The source becomes bad if a value is below `least` or above `most`. */
static void take_group(source_t *source, int16_t *values, size_t n, uint32_t k, int32_t centre,
                       uint32_t shift, int32_t least, int32_t most)
{
    uint32_t high[GROUP], low[GROUP];
    for (size_t i = 0; i < n; i++) {
        high[i] = take_ones(source);
    }
    for (size_t i = 0; i < n; i++) {
        low[i] = take_bits(source, k);
    }
    for (size_t i = 0; i < n; i++) {
        uint32_t all = (high[i] < LONG_AFTER ? high[i] : take_bits(source, LONG_BITS)) << k | low[i];
        int32_t value = tw_lossless_unfolded(all, centre);
        source->bad = source->bad || value < least || value > most;
        values[i] = (int16_t)(source->bad ? 0 : value * (1 << shift));
    }
}

static void take_list(source_t *source, int16_t *values, size_t n, int32_t centre, uint32_t shift,
                      int classes)
{
    int32_t least = classes ? 0 : -(TW_LOSSLESS_SCALE_MAX >> shift);
    int32_t most = classes ? TW_LOSSLESS_CLASSES - 1 : TW_LOSSLESS_SCALE_MAX >> shift;
    uint32_t k = take_bits(source, TW_LOSSLESS_LIST_K_BITS);
    source->bad = source->bad || k > TW_LOSSLESS_LIST_K_MAX;
    for (size_t i = 0; i < n && !source->bad; i += GROUP) {
        take_group(source, values + i, smaller(GROUP, n - i), k, centre, shift, least, most);
    }
}

static void take_zeros(source_t *source, uint16_t *rows, size_t n)
{
    for (size_t r = 0; r < n; r += 8) {
        uint8_t bits;
        head_take(source, &bits, 1);
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

static void take_rows(const tw_quant_lossless_t *codec, source_t *source, const tw_lossless_piece_t *piece,
                      uint16_t *rows, size_t n, int classes)
{
    size_t at = 0;
    take_list(source, codec->list, live_rows(rows, n), classes ? piece->row_class : piece->scale, 0, classes);
    for (size_t r = 0; r < n && !source->bad; r++) {
        if (rows[r] == TW_LOSSLESS_DEAD) {
            continue;
        }
        uint32_t value = (uint32_t)codec->list[at++];
        if (classes) {
            rows[r] = (uint16_t)((rows[r] & TW_LOSSLESS_SCALE_MASK) | value << TW_LOSSLESS_CLASS_SHIFT);
        } else {
            rows[r] = (uint16_t)((rows[r] & ~(uint32_t)TW_LOSSLESS_SCALE_MASK) | (value + TW_LOSSLESS_BIAS));
        }
    }
}

/** Whether an encoder can write such a piece. The sum of pieces' sizes is checked elsewhere. */
static int is_piece(const tw_lossless_piece_t *piece)
{
    if (piece->row_elems < TW_LOSSLESS_ROW_MIN) {
        return 0;
    }
    int columns_fit = !(piece->flags & TW_LOSSLESS_FLAG_COLUMNS) ||
                      piece->n_elems / piece->row_elems >= TW_LOSSLESS_MATRIX_ROWS;
    return piece->n_elems && piece->first < piece->row_elems &&
           !piece->first == !(piece->flags & TW_LOSSLESS_FLAG_FIRST) && columns_fit &&
           piece->scale <= TW_LOSSLESS_SCALE_MAX && piece->scale >= -TW_LOSSLESS_SCALE_MAX;
}

static void take_piece(source_t *source, tw_lossless_piece_t *piece)
{
    uint8_t flags;
    head_take(source, &flags, 1);
    piece->flags = flags & TW_LOSSLESS_FLAGS;
    piece->row_class = flags >> TW_LOSSLESS_FLAG_BITS;
    piece->n_elems = head_take_number(source);
    piece->row_elems = head_take_number(source);
    piece->first = piece->flags & TW_LOSSLESS_FLAG_FIRST ? head_take_number(source) : 0;
    head_take(source, &piece->scale, sizeof(piece->scale));
    source->bad = source->bad || !is_piece(piece);
}

/** Read the pieces, which must have n_elems elements together, and make room for their rows and columns. */
static tw_status_t take_pieces(tw_quant_lossless_t *codec, source_t *source, size_t n_elems)
{
    tw_lossless_shape_t *shape = &codec->shape;
    size_t n = 0, n_rows = 0, n_columns = 0, n_pieces = head_take_number(source);
    shape->n_pieces = shape->n_rows = shape->n_columns = 0;
    source->bad = source->bad || n_pieces > (size_t)(source->end - source->at) / PIECE_BYTES_MIN ||
                  n_pieces > tw_lossless_pieces_max(n_elems);
    if (source->bad) {
        return TW_OK;
    }
    TW_TRY(tw_lossless_reserve(shape, n_pieces, 0, 0));
    for (size_t p = 0; p < n_pieces && !source->bad; p++) {
        tw_lossless_piece_t *piece = &shape->pieces[p];
        take_piece(source, piece);
        source->bad = source->bad || piece->n_elems > n_elems - n;
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
    TW_TRY(tw_lossless_reserve_list(codec, n_rows));
    shape->n_pieces = n_pieces;
    shape->n_rows = n_rows;
    shape->n_columns = n_columns;
    return TW_OK;
}

/** Set a piece's rows to the piece's scale and class, and those with a ZEROS bit to DEAD. */
static void begin_rows(source_t *source, const tw_lossless_piece_t *piece, uint16_t *rows)
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
}

static void take_scales(const tw_quant_lossless_t *codec, source_t *source, const tw_lossless_piece_t *piece,
                        uint16_t *rows, int16_t *columns)
{
    size_t n_rows = tw_lossless_piece_rows(piece);
    if (piece->flags & TW_LOSSLESS_FLAG_SCALES) {
        take_rows(codec, source, piece, rows, n_rows, 0);
    }
    if (piece->flags & TW_LOSSLESS_FLAG_CLASSES) {
        take_rows(codec, source, piece, rows, n_rows, 1);
    }
    if (piece->flags & TW_LOSSLESS_FLAG_COLUMNS) {
        take_list(source, columns, piece->row_elems, 0, tw_lossless_column_shift(piece), 0);
    }
}

/** Count the coded elements, and set the mask of their classes. */
static void find_live(tw_quant_lossless_t *codec)
{
    tw_lossless_walk_t walk = tw_lossless_walk_begin(&codec->shape, NULL, 0, 0);
    tw_lossless_run_t run;
    codec->shape.n_live = codec->classes = 0;
    while (tw_lossless_walk_next(&walk, SIZE_MAX, &run)) {
        if (run.value != TW_LOSSLESS_DEAD) {
            codec->shape.n_live += run.n;
            codec->classes |= (uint8_t)(1u << (run.value >> TW_LOSSLESS_CLASS_SHIFT));
        }
    }
}

static void take_tails(source_t *source, tw_lossless_tails_t *tails)
{
    uint8_t n = 0;
    if (tails->tailed) {
        head_take(source, &n, 1);
        source->bad = source->bad || n > TW_LOSSLESS_TAIL_CONTEXTS;
        head_take(source, tails->tables, source->bad ? 0 : n * sizeof(*tails->tables));
    }
    tails->n_tables = source->bad ? 0 : n;
}

tw_status_t tw_lossless_head_read(tw_quant_lossless_t *codec, const uint8_t *src, size_t bytes,
                                  size_t n_elems, size_t *taken)
{
    tw_lossless_shape_t *shape = &codec->shape;
    source_t source = {.at = src, .end = src + bytes};
    tw_lossless_head_t head;
    head_take(&source, &head, TW_LOSSLESS_HEAD_BYTES);
    codec->own = head.own;
    codec->window = 4 * head.window;
    TW_TRY(take_pieces(codec, &source, n_elems));
    uint16_t *rows = shape->rows;
    for (size_t p = 0; p < shape->n_pieces && !source.bad; p++) {
        begin_rows(&source, &shape->pieces[p], rows);
        rows += tw_lossless_piece_rows(&shape->pieces[p]);
    }
    for (size_t c = 0; c < TW_LOSSLESS_CLASSES; c++) {
        if (head.own >> c & 1) {
            head_take(&source, &codec->tables[c], sizeof(codec->tables[c]));
        } else {
            tw_lossless_table_common((uint32_t)c, codec->window, &codec->tables[c]);
        }
    }
    take_tails(&source, &codec->tails_are);
    rows = shape->rows;
    int16_t *columns = shape->columns;
    for (size_t p = 0; p < shape->n_pieces && !source.bad; p++) {
        take_scales(codec, &source, &shape->pieces[p], rows, columns);
        rows += tw_lossless_piece_rows(&shape->pieces[p]);
        columns += shape->pieces[p].flags & TW_LOSSLESS_FLAG_COLUMNS ? shape->pieces[p].row_elems : 0;
    }
    end_bits_in(&source);
    if ((source.at - src) % 2) {
        uint8_t zero;
        head_take(&source, &zero, 1);
        source.bad = source.bad || zero;
    }
    TW_FAIL_IF(source.bad, TW_ERR_FORMAT, "quant: lossless_decode: bad scales or tables");
    find_live(codec);
    *taken = (size_t)(source.at - src);
    return TW_OK;
}
