/* What a message's encoder and its decoder make alike: steps and dither. */
#include "quant/ecdq/ecdq.h"

/** Quarters of an octave from the mean of the logarithms to the standard deviation, about, by class: the
 *  wider a row's elements are spread, the more. */
static const int deviations[TW_LOSSLESS_CLASSES] = {0, 1, 1, 2, 3, 4, 4, 6};

void tw_ecdq_move_rows(tw_lossless_shape_t *shape, int step)
{
    for (size_t r = 0; r < shape->n_rows; r++) {
        if (shape->rows[r] != TW_LOSSLESS_DEAD) {
            int of_class = deviations[shape->rows[r] >> TW_LOSSLESS_CLASS_SHIFT];
            uint32_t scale =
                ((uint32_t)shape->rows[r] + (uint32_t)(of_class + step)) & TW_LOSSLESS_SCALE_MASK;
            shape->rows[r] = (uint16_t)(scale | (shape->rows[r] & ~(uint32_t)TW_LOSSLESS_SCALE_MASK));
        }
    }
}

void tw_ecdq_dither(tw_ecdq_t *ecdq, const uint32_t key[2], size_t block, size_t n)
{
    const size_t groups = TW_LOSSLESS_BLOCK_ELEMS / TW_ECDQ_DITHER_GROUP;
    ecdq->backend->dither(key, (uint32_t)(block * groups),
                          (n + TW_ECDQ_DITHER_GROUP - 1) / TW_ECDQ_DITHER_GROUP, ecdq->halves);
}
