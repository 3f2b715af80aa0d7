/* Measures the operations of block codecs on a GPU. */
#include "bench/codecs/rig.h"

#ifndef TW_HAVE_CUDA

tw_status_t cb_gpu_measure(const cb_case_t *c, cb_result_t *result)
{
    (void)c, (void)result;
    return tw_fail(TW_ERR_UNSUPPORTED, "bench: this program was built without CUDA");
}

#else

#include <cuda_runtime_api.h>

/* Bytes of all sets of buffers together: several times any GPU's cache. */
#define ARENA_BYTES ((size_t)768 << 20)
#define MAX_SETS 256
#define MIN_SAMPLES 5
#define MAX_SAMPLES 1000

#define CUDA_TRY(call) tw_quant_cuda_status((int)(call), #call)

typedef struct gpu {
    cb_rig_t rig;
    cudaStream_t stream;
    cudaEvent_t start, stop;
} gpu_t;

static tw_status_t gpu_run_op(gpu_t *gpu, size_t set)
{
    return cb_rig_run(&gpu->rig, set);
}

static tw_status_t gpu_run_copy(gpu_t *gpu, size_t set)
{
    size_t half = (size_t)(gpu->rig.at.moved / 2);
    uint8_t *base = gpu->rig.arena + set * gpu->rig.at.bytes;
    return CUDA_TRY(cudaMemcpyAsync(base + half, base, half, cudaMemcpyDeviceToDevice, gpu->stream));
}

/* ---- times --------------------------------------------------------------------------------------------- */

static tw_status_t gpu_capture(gpu_t *gpu, tw_status_t (*run)(gpu_t *, size_t), cudaGraphExec_t *exec)
{
    cudaGraph_t graph = NULL;
    tw_status_t status = TW_OK, ended;
    TW_TRY(CUDA_TRY(cudaStreamBeginCapture(gpu->stream, cudaStreamCaptureModeThreadLocal)));
    for (size_t set = 0; status == TW_OK && set < gpu->rig.n_sets; set++) {
        status = run(gpu, set);
    }
    ended = CUDA_TRY(cudaStreamEndCapture(gpu->stream, &graph));
    status = status == TW_OK ? ended : status;
    status = status == TW_OK ? CUDA_TRY(cudaGraphInstantiateWithFlags(exec, graph, 0)) : status;
    if (graph) {
        cudaGraphDestroy(graph);
    }
    return status;
}

/** Measure the seconds of one operation: replay once a graph that runs it on every set of buffers, and take
 *  the mean. */
static tw_status_t gpu_replay(gpu_t *gpu, cudaGraphExec_t exec, double *sec)
{
    float ms = 0;
    TW_TRY(CUDA_TRY(cudaEventRecord(gpu->start, gpu->stream)));
    TW_TRY(CUDA_TRY(cudaGraphLaunch(exec, gpu->stream)));
    TW_TRY(CUDA_TRY(cudaEventRecord(gpu->stop, gpu->stream)));
    TW_TRY(CUDA_TRY(cudaEventSynchronize(gpu->stop)));
    TW_TRY(CUDA_TRY(cudaEventElapsedTime(&ms, gpu->start, gpu->stop)));
    *sec = (double)ms * 1e-3 / (double)gpu->rig.n_sets;
    return TW_OK;
}

static tw_status_t gpu_time(gpu_t *gpu, tw_status_t (*run)(gpu_t *, size_t), double *median)
{
    double samples[MAX_SAMPLES], warm_up;
    cudaGraphExec_t exec = NULL;
    tw_status_t status = gpu_capture(gpu, run, &exec);
    for (int i = 0; status == TW_OK && i < 3; i++) {
        status = gpu_replay(gpu, exec, &warm_up);
    }
    size_t n = 0;
    double start = tw_time_sec();
    while (status == TW_OK && n < MAX_SAMPLES &&
           (n < MIN_SAMPLES || tw_time_sec() - start < gpu->rig.c->seconds)) {
        status = gpu_replay(gpu, exec, &samples[n++]);
    }
    if (exec) {
        cudaGraphExecDestroy(exec);
    }
    TW_TRY(status);
    *median = tw_median(samples, n);
    return TW_OK;
}

/* ---- a case -------------------------------------------------------------------------------------------- */

/** Copy to the GPU and wait until it is done, because the encoders' streams do not wait for copies. */
static tw_status_t gpu_copy_in(void *dst, const void *src, size_t bytes)
{
    TW_TRY(CUDA_TRY(cudaMemcpy(dst, src, bytes, cudaMemcpyHostToDevice)));
    return CUDA_TRY(cudaDeviceSynchronize());
}

static tw_status_t gpu_set_up(gpu_t *gpu, const cb_case_t *c)
{
    static const cb_memory_t memory = {.mem = TW_MEM_CUDA, .copy = gpu_copy_in};
    cb_rig_t *rig = &gpu->rig;
    TW_TRY(cb_rig_init(rig, c, &memory));
    if ((double)rig->at.bytes < rig->at.moved) { /* gpu_run_copy needs `moved` bytes in a set */
        rig->at.bytes = ((size_t)rig->at.moved + 255) & ~(size_t)255;
    }
    rig->n_sets = ARENA_BYTES / rig->at.bytes;
    rig->n_sets = rig->n_sets < 2 ? 2 : rig->n_sets > MAX_SETS ? MAX_SETS : rig->n_sets;
    TW_TRY(CUDA_TRY(cudaStreamCreateWithFlags(&gpu->stream, cudaStreamNonBlocking)));
    TW_TRY(CUDA_TRY(cudaEventCreate(&gpu->start)));
    TW_TRY(CUDA_TRY(cudaEventCreate(&gpu->stop)));
    TW_TRY(CUDA_TRY(cudaMalloc((void **)&rig->arena, rig->n_sets * rig->at.bytes)));
    TW_TRY(CUDA_TRY(cudaMemset(rig->arena, 0, rig->n_sets * rig->at.bytes)));
    rig->stream = gpu->stream;
    TW_TRY(cb_rig_fill(rig));
    return CUDA_TRY(cudaDeviceSynchronize());
}

static void gpu_clean_up(gpu_t *gpu)
{
    if (gpu->stop) {
        cudaEventDestroy(gpu->stop);
    }
    if (gpu->start) {
        cudaEventDestroy(gpu->start);
    }
    if (gpu->stream) {
        cudaStreamDestroy(gpu->stream);
    }
    cudaFree(gpu->rig.arena);
    cb_rig_cleanup(&gpu->rig);
}

tw_status_t cb_gpu_measure(const cb_case_t *c, cb_result_t *result)
{
    gpu_t gpu = {0};
    tw_status_t status = gpu_set_up(&gpu, c);
    status = status == TW_OK ? gpu_time(&gpu, gpu_run_op, &result->op_sec) : status;
    status = status == TW_OK ? gpu_time(&gpu, gpu_run_copy, &result->copy_sec) : status;
    result->moved_bytes = gpu.rig.at.moved;
    gpu_clean_up(&gpu);
    return status;
}

#endif
