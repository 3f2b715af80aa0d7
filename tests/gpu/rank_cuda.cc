/* A rank's GPU: the real one. */
#include <cuda_runtime_api.h>

#include "tests/gpu/rank.h"

namespace tw::gpu
{

namespace
{

tw_status_t check(cudaError_t error, const char *what)
{
    return tw_quant_cuda_status((int)error, what);
}

class CudaGpu final : public RankGpu
{
  public:
    tw_status_t create(bool over_nccl, tw_transport_t *transport, tw_coll_t **out) override
    {
        tw_coll_params_t params = {};
        params.transport = transport;
        params.mem = TW_MEM_CUDA;
        params.wire = over_nccl ? TW_COLL_WIRE_NCCL : TW_COLL_WIRE_TRANSPORT;
        return tw_coll_create(&params, out);
    }
    tw_stream_t stream() override
    {
        if (stream_ == nullptr) {
            (void)check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream");
        }
        return stream_;
    }
    /* Copies from memory that is not pinned may still be under way when the call returns. */
    void *upload(const void *bytes, size_t n_bytes) override
    {
        void *memory = nullptr;
        tw_status_t status = check(cudaMalloc(&memory, n_bytes + 1), "memory for a tensor");
        if (status == TW_OK) {
            status = check(cudaMemcpy(memory, bytes, n_bytes, cudaMemcpyHostToDevice), "copying the input");
        }
        if (status == TW_OK) {
            status = check(cudaStreamSynchronize(cudaStreamLegacy), "copying the input");
        }
        if (status == TW_OK) {
            return memory;
        }
        release(memory);
        return nullptr;
    }
    tw_status_t fill(void *memory, int byte, size_t n_bytes) override
    {
        const tw_status_t status = check(cudaMemset(memory, byte, n_bytes), "cudaMemset");
        return status == TW_OK ? check(cudaStreamSynchronize(cudaStreamLegacy), "cudaMemset") : status;
    }
    tw_status_t fetch(void *bytes, const void *memory, size_t n_bytes) override
    {
        return check(cudaMemcpy(bytes, memory, n_bytes, cudaMemcpyDeviceToHost), "copying the result");
    }
    void release(void *memory) override
    {
        (void)check(cudaFree(memory), "cudaFree");
    }
    tw_status_t replay(const std::function<tw_status_t()> &post, int n_replays,
                       const std::function<tw_status_t()> &before,
                       const std::function<tw_status_t()> &after) override
    {
        cudaGraphExec_t exec = nullptr;
        tw_status_t status = capture(post, &exec);
        for (int i = 0; i < n_replays && status == TW_OK; i++) {
            status = before();
            if (status == TW_OK) {
                status = check(cudaGraphLaunch(exec, stream_), "cudaGraphLaunch");
            }
            if (status == TW_OK) {
                status = check(cudaStreamSynchronize(stream_), "the graph");
            }
            if (status == TW_OK) {
                status = after();
            }
        }
        if (exec != nullptr) {
            (void)check(cudaGraphExecDestroy(exec), "cudaGraphExecDestroy");
        }
        return status;
    }

  private:
    tw_status_t capture(const std::function<tw_status_t()> &post, cudaGraphExec_t *exec)
    {
        cudaGraph_t graph = nullptr;
        tw_status_t status =
            check(cudaStreamBeginCapture((cudaStream_t)stream(), cudaStreamCaptureModeThreadLocal),
                  "cudaStreamBeginCapture");
        if (status != TW_OK) {
            return status;
        }
        status = post();
        const tw_status_t ended = check(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
        status = status == TW_OK ? ended : status;
        if (status == TW_OK) {
            status = check(cudaGraphInstantiateWithFlags(exec, graph, 0), "cudaGraphInstantiate");
        }
        if (graph != nullptr) {
            (void)check(cudaGraphDestroy(graph), "cudaGraphDestroy");
        }
        return status;
    }

    cudaStream_t stream_ = nullptr;
};

} // namespace

RankGpu &cuda_rank_gpu()
{
    static CudaGpu gpu;
    return gpu;
}

} // namespace tw::gpu
