/** From a job to the kernel that does it. A RUNNER has `template <class BODY> static tw_status_t run(job, grid)`: one
 *  launches on a GPU, the tests' one emulates.
 *
 *  Types and bits are template parameters. Rotation, rounding, type of scale and block size are not: they are the same for
 *  all threads, a branch costs nothing beside memory, and each would double the kernels to compile. */
#ifndef TW_QUANT_CUDA_SELECT_CUH
#define TW_QUANT_CUDA_SELECT_CUH

#include "quant/cuda/kernels.cuh"

/* ---- bodies: what a kernel runs, with how many threads, and how many blocks are to fit on a multiprocessor -------- */

template <class SOURCE, int BITS>
struct tw_qk_body_encode {
    static constexpr int threads_max = TW_QP_TILE_STRIPS_MAX / SOURCE::rows, blocks_min = SOURCE::blocks_min;
    static TW_DEVICE void run(const tw_qp_args_t &args, const uint64_t *words)
    {
        tw_qk_encode<SOURCE, BITS>(args, words);
    }
};

template <class SINK, int BITS>
struct tw_qk_body_decode {
    static constexpr int threads_max = TW_QP_TILE_STRIPS_MAX / TW_QP_ROWS_MAX,
                         blocks_min = SINK::reads ? 7 : 8;
    static TW_DEVICE void run(const tw_qp_args_t &args, const uint64_t *words)
    {
        tw_qk_decode<SINK, BITS>(args, words);
    }
};

template <int TYPE, int BITS>
struct tw_qk_body_reduce_decode {
    static constexpr int threads_max = TW_QP_TILE_STRIPS_MAX / TW_QP_ROWS_MAX, blocks_min = 5;
    static TW_DEVICE void run(const tw_qp_args_t &args, const uint64_t *words)
    {
        tw_qk_reduce_decode<TYPE, BITS>(args, words);
    }
};

/* ---- selection -------------------------------------------------------------------------------------------------- */

template <class RUNNER, template <int> class SOURCE, int TYPE>
tw_status_t tw_qk_select_encode_bits(const tw_qj_job_t *job, uint32_t grid)
{
    if (job->params.args.out.bits == 8) {
        return RUNNER::template run<tw_qk_body_encode<SOURCE<TYPE>, 8>>(job, grid);
    }
    return RUNNER::template run<tw_qk_body_encode<SOURCE<TYPE>, 4>>(job, grid);
}

/** encode, delta_encode, AdamW: SOURCE is templated on the plain type. */
template <class RUNNER, template <int> class SOURCE>
tw_status_t tw_qk_select_encode(const tw_qj_job_t *job, uint32_t grid)
{
    switch (job->type) {
    case TW_TYPE_FP32:
        return tw_qk_select_encode_bits<RUNNER, SOURCE, TW_TYPE_FP32>(job, grid);
    case TW_TYPE_BF16:
        return tw_qk_select_encode_bits<RUNNER, SOURCE, TW_TYPE_BF16>(job, grid);
    default:
        return tw_qk_select_encode_bits<RUNNER, SOURCE, TW_TYPE_FP16>(job, grid);
    }
}

/** reduce_encode: templated on the inputs' bits. */
template <class RUNNER>
tw_status_t tw_qk_select_reduce_encode(const tw_qj_job_t *job, uint32_t grid)
{
    if (job->params.args.in.bits == 8) {
        return tw_qk_select_encode_bits<RUNNER, tw_qk_source_sum, 8>(job, grid);
    }
    return tw_qk_select_encode_bits<RUNNER, tw_qk_source_sum, 4>(job, grid);
}

template <class RUNNER, template <int> class SINK, int TYPE>
tw_status_t tw_qk_select_decode_bits(const tw_qj_job_t *job, uint32_t grid)
{
    if (job->params.args.in.bits == 8) {
        return RUNNER::template run<tw_qk_body_decode<SINK<TYPE>, 8>>(job, grid);
    }
    return RUNNER::template run<tw_qk_body_decode<SINK<TYPE>, 4>>(job, grid);
}

/** decode, decode_apply. */
template <class RUNNER, template <int> class SINK>
tw_status_t tw_qk_select_decode(const tw_qj_job_t *job, uint32_t grid)
{
    switch (job->type) {
    case TW_TYPE_FP32:
        return tw_qk_select_decode_bits<RUNNER, SINK, TW_TYPE_FP32>(job, grid);
    case TW_TYPE_BF16:
        return tw_qk_select_decode_bits<RUNNER, SINK, TW_TYPE_BF16>(job, grid);
    default:
        return tw_qk_select_decode_bits<RUNNER, SINK, TW_TYPE_FP16>(job, grid);
    }
}

template <class RUNNER, int TYPE>
tw_status_t tw_qk_select_reduce_decode_bits(const tw_qj_job_t *job, uint32_t grid)
{
    if (job->params.args.in.bits == 8) {
        return RUNNER::template run<tw_qk_body_reduce_decode<TYPE, 8>>(job, grid);
    }
    return RUNNER::template run<tw_qk_body_reduce_decode<TYPE, 4>>(job, grid);
}

template <class RUNNER>
tw_status_t tw_qk_select_reduce_decode(const tw_qj_job_t *job, uint32_t grid)
{
    switch (job->type) {
    case TW_TYPE_FP32:
        return tw_qk_select_reduce_decode_bits<RUNNER, TW_TYPE_FP32>(job, grid);
    case TW_TYPE_BF16:
        return tw_qk_select_reduce_decode_bits<RUNNER, TW_TYPE_BF16>(job, grid);
    default:
        return tw_qk_select_reduce_decode_bits<RUNNER, TW_TYPE_FP16>(job, grid);
    }
}

#endif
