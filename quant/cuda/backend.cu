/* The backend "cuda": what a context needs on a GPU, and the table of operations. */
#include "quant/cuda/launch.cuh"
#include "quant/cuda/words.cuh"

#include <cstdlib>

/* ---- errors -------------------------------------------------------------------------------------------- */

extern "C" tw_status_t tw_quant_cuda_status(int error, const char *what)
{
    if (error == cudaSuccess) {
        return TW_OK;
    }
    cudaGetLastError(); /* so that no later call reports it */
    tw_error("cuda: %s: %s (%d, %s)", what, cudaGetErrorString((cudaError_t)error), error,
             cudaGetErrorName((cudaError_t)error));
    switch (error) {
    case cudaErrorMemoryAllocation:
        return TW_ERR_NO_MEMORY;
    case cudaErrorNoDevice: /* for these four: no device, or kernels not compiled for it */
    case cudaErrorInsufficientDriver:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorNotSupported:
        return TW_ERR_UNSUPPORTED;
    default:
        return TW_ERR_CUDA;
    }
}

/* ---- tables of pointers -------------------------------------------------------------------------------- */

namespace
{

tw_status_t table_fill(uint64_t *table, const void *const *pointers, size_t n, tw_stream_t stream)
{
    static_assert(sizeof(*pointers) == sizeof(*table), "a pointer is a word");
    return tw_quant_cuda_words_fill(table, pointers, n, stream);
}

/* ---- contexts ------------------------------------------------------------------------------------------ */

tw_status_t run(const tw_cuda_job_t *job, uint32_t grid)
{
    switch (job->op) {
    case TW_CUDA_ENCODE:
    case TW_CUDA_ENCODE_DELTA:
        return tw_quant_cuda_run_encode(job, grid);
    case TW_CUDA_DECODE:
    case TW_CUDA_DECODE_APPLY:
        return tw_quant_cuda_run_decode(job, grid);
    case TW_CUDA_ADAMW:
        return tw_quant_cuda_run_adamw(job, grid);
    default:
        return tw_quant_cuda_run_reduce(job, grid);
    }
}

/** Load all kernels that a context with this codec may launch. The kernels of reduce_encode decode this
 *  codec and encode with any codec. */
tw_status_t load_kernels(const tw_quant_codec_t *codec)
{
    static const tw_cuda_op_t ops[] = {TW_CUDA_ENCODE,       TW_CUDA_ENCODE_DELTA, TW_CUDA_ADAMW,
                                       TW_CUDA_DECODE,       TW_CUDA_DECODE_APPLY, TW_CUDA_REDUCE_DECODE,
                                       TW_CUDA_REDUCE_ENCODE};
    static const tw_type_t types[] = {TW_TYPE_FP32, TW_TYPE_BF16, TW_TYPE_FP16};
    static const tw_quant_kind_t kinds[] = {TW_CODE_KINDS_OF_SUMS};
    tw_cuda_job_t *job = (tw_cuda_job_t *)calloc(1, sizeof(*job));
    tw_status_t status = job ? tw_quant_cuda_words_load() : TW_ERR_NO_MEMORY;
    for (tw_cuda_op_t op : ops) {
        for (tw_type_t type : types) {
            for (tw_quant_kind_t kind : kinds) {
                if (status != TW_OK) {
                    break;
                }
                job->op = op;
                job->type = type;
                job->load_only = 1;
                job->params.args.in.kind = (uint32_t)codec->kind;
                job->params.args.out.kind = (uint32_t)(op == TW_CUDA_REDUCE_ENCODE ? kind : codec->kind);
                status = run(job, 0);
            }
        }
    }
    free(job);
    return status;
}

int usable()
{
    int n_devices = 0;
    if (cudaGetDeviceCount(&n_devices) == cudaSuccess) {
        return n_devices > 0;
    }
    cudaGetLastError();
    return 0;
}

tw_status_t create_counter(tw_cuda_device_t *device)
{
    TW_TRY(tw_quant_cuda_status(cudaMalloc((void **)&device->nonfinite, sizeof(*device->nonfinite)),
                                "cudaMalloc"));
    tw_status_t status =
        tw_quant_cuda_status(cudaMemset(device->nonfinite, 0, sizeof(*device->nonfinite)), "cudaMemset");
    if (status != TW_OK) {
        tw_quant_cuda_status(cudaFree(device->nonfinite), "cudaFree");
    }
    return status;
}

tw_status_t create_device(tw_cuda_device_t *device)
{
    int ordinal, n_multiprocessors;
    TW_TRY(tw_quant_cuda_status(cudaGetDevice(&ordinal), "cudaGetDevice"));
    TW_TRY(tw_quant_cuda_status(
        cudaDeviceGetAttribute(&n_multiprocessors, cudaDevAttrMultiProcessorCount, ordinal),
        "cudaDeviceGetAttribute"));
    device->n_multiprocessors = (uint32_t)n_multiprocessors;
    device->run = run;
    device->table_fill = table_fill;
    return create_counter(device);
}

tw_status_t create(tw_quant_t *quant)
{
    TW_TRY(load_kernels(&quant->codec));
    tw_cuda_device_t *device = (tw_cuda_device_t *)calloc(1, sizeof(*device));
    TW_FAIL_IF(!device, TW_ERR_NO_MEMORY, "quant: out of memory");
    tw_status_t status = create_device(device);
    if (status != TW_OK) {
        free(device);
        return status;
    }
    quant->impl = device;
    return TW_OK;
}

void destroy(tw_quant_t *quant)
{
    tw_cuda_device_t *device = (tw_cuda_device_t *)quant->impl;
    tw_quant_cuda_status(cudaFree(device->nonfinite), "cudaFree");
    free(device);
}

/** Read the count of non-finite blocks from the device. If the device has failed, return UINT64_MAX rather
 *  than a wrong 0. */
uint64_t nonfinite_blocks(const tw_quant_t *quant)
{
    const tw_cuda_device_t *device = (const tw_cuda_device_t *)quant->impl;
    unsigned long long blocks = 0;
    tw_status_t status = tw_quant_cuda_status(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    if (status == TW_OK) {
        status = tw_quant_cuda_status(
            cudaMemcpy(&blocks, device->nonfinite, sizeof(blocks), cudaMemcpyDeviceToHost), "cudaMemcpy");
    }
    return status == TW_OK ? blocks : UINT64_MAX;
}

} // namespace

/* In the order of tw_quant_backend_t: C++17 has no designators. */
extern "C" const tw_quant_backend_t tw_quant_backend_cuda = {
    "cuda",
    TW_MEM_CUDA,
    usable,
    create,
    destroy,
    nonfinite_blocks,
    tw_cuda_encode,
    tw_cuda_decode,
    tw_cuda_reduce_encode,
    tw_cuda_reduce_decode,
    tw_cuda_adamw_encode_delta,
    tw_cuda_reduce_workspace_bytes,
    NULL,
};
