/* Computes a matrix product in pieces, each by one thread. oneDNN's order of summation depends on the piece's
 * shape. So pieces depend only on the product's shape: the bits are the same with any number of threads. */
#include "trainer/model/spread.h"

/* Each piece reads its factors again: with 64 pieces a single thread took up to a fifth longer. But with 16
 * pieces at most 16 threads are busy. */
enum { MOST_PIECES = 16, LEAST_SIDE = 128, STEP = 32 };
/* Fewest multiplications of a piece: with fewer, waking a thread would cost more than it saves. */
#define LEAST_WORK ((size_t)4 << 20)

static size_t half_of(size_t side)
{
    return ((side + 1) / 2 + STEP - 1) / STEP * STEP;
}

static size_t pieces_count(size_t all, size_t piece)
{
    return (all + piece - 1) / piece;
}

/** Halve the longer side while pieces stay large enough. Pieces that are nearly square read least: a piece
 *  reads in proportion to its sides' sum, and computes in proportion to their product. */
tw_pieces_t tw_product_pieces(const tw_product_t *p)
{
    tw_pieces_t pieces = {.rows = p->rows, .cols = p->cols, .n_rows = 1, .n_cols = 1};
    while (pieces.n_rows * pieces.n_cols < MOST_PIECES) {
        size_t *side = pieces.rows > pieces.cols ? &pieces.rows : &pieces.cols;
        if (*side < 2 * LEAST_SIDE || pieces.rows * pieces.cols / 2 * p->inner < LEAST_WORK) {
            break;
        }
        *side = half_of(*side);
        pieces.n_rows = pieces_count(p->rows, pieces.rows);
        pieces.n_cols = pieces_count(p->cols, pieces.cols);
    }
    return pieces;
}

typedef struct cut {
    const tw_compute_t *compute;
    const tw_product_t *product;
    tw_pieces_t pieces;
} cut_t;

/** Return the part of a factor from row `row` and column `col` on, both counted after transposition. */
static tw_matrix_t factor_from(tw_matrix_t matrix, size_t row, size_t col)
{
    size_t first = matrix.transposed ? col * matrix.stride + row : row * matrix.stride + col;
    matrix.at = (const char *)matrix.at + first * tw_type_bytes(matrix.type);
    return matrix;
}

static size_t side_of(size_t all, size_t first, size_t most)
{
    return all - first < most ? all - first : most;
}

static void do_piece(void *ctx, size_t item, int thread)
{
    const cut_t *cut = ctx;
    const tw_pieces_t *pieces = &cut->pieces;
    tw_product_t piece = *cut->product;
    size_t row = item / pieces->n_cols * pieces->rows, col = item % pieces->n_cols * pieces->cols;
    piece.a = factor_from(piece.a, row, 0);
    piece.b = factor_from(piece.b, 0, col);
    piece.c += row * piece.c_stride + col;
    piece.rows = side_of(piece.rows, row, pieces->rows);
    piece.cols = side_of(piece.cols, col, pieces->cols);
    tw_product_run(cut->compute->products[thread], &piece);
}

void tw_spread_product(const tw_compute_t *compute, const tw_product_t *product)
{
    cut_t cut = {.compute = compute, .product = product, .pieces = tw_product_pieces(product)};
    tw_pool_run(compute->pool, cut.pieces.n_rows * cut.pieces.n_cols, do_piece, &cut);
}
