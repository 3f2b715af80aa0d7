/* bench/quant: the operations' names. */
#include "bench/codecs/bench.h"

const char *qb_op_name(qb_op_t op)
{
    static const char *const names[QB_OP_COUNT] = {
        "encode", "decode", "decode_add", "encode_delta", "decode_apply", "reduce_encode", "reduce_decode"};
    return names[op];
}

int qb_op_takes(int op, const tw_quant_codec_t *codec)
{
    return tw_quant_row_get(codec->kind)->sums || (op != QB_REDUCE_ENCODE && op != QB_REDUCE_DECODE);
}
