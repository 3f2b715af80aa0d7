/* What a message's encoder and its decoder make alike: steps and dither. */
#include "quant/ecdq/value.h"

void tw_ecdq_move_rows(tw_lossless_shape_t *shape, int step)
{
    for (size_t r = 0; r < shape->n_rows; r++) {
        if (shape->rows[r] != TW_LOSSLESS_DEAD) {
            shape->rows[r] = tw_ecdq_moved_row(shape->rows[r], step);
        }
    }
}

void tw_ecdq_dither(tw_ecdq_t *ecdq, const uint32_t key[2], size_t block, size_t n)
{
    const size_t groups = TW_LOSSLESS_BLOCK_ELEMS / TW_ECDQ_DITHER_GROUP;
    ecdq->backend->dither(key, (uint32_t)(block * groups),
                          (n + TW_ECDQ_DITHER_GROUP - 1) / TW_ECDQ_DITHER_GROUP, ecdq->halves);
}
