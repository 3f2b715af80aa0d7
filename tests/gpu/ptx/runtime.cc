/* Stands for the CUDA runtime: the calls that Thinwire makes, with kernels on the PTX machine. Linked before
 * cudart it is what a program finds; a call that it lacks fails the link. */
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>

#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include "tests/gpu/ptx/launch.h"
#include "tests/gpu/ptx/memory.h"
#include "tests/gpu/ptx/report.h"
#include "tests/gpu/ptx/settings.h"
#include "tests/gpu/ptx/streams.h"

using namespace tw::ptx;

namespace
{

using Lock = std::lock_guard<std::recursive_mutex>;

thread_local cudaError_t last_error = cudaSuccess;
thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;

cudaError_t done(cudaError_t error)
{
    last_error = error == cudaSuccess ? last_error : error;
    return error;
}

/* A call that CUDA forbids while a graph is captured, unless this thread has taken the relaxed mode. */
void unsafe(const char *call)
{
    if (capture_mode != cudaStreamCaptureModeRelaxed && capture_global()) {
        report("CAPTURE-UNSAFE", "", std::string(call) + " while a graph is captured in the global mode");
    }
}

Stream *stream_of(cudaStream_t stream)
{
    const bool legacy = !stream || stream == cudaStreamLegacy || stream == cudaStreamPerThread;
    return legacy ? default_stream() : (Stream *)stream;
}

/* ---- memory ---- */

std::map<void *, size_t> &given()
{
    static auto *all = new std::map<void *, size_t>;
    return *all;
}

/* Each allocation has pages of its own; what is in it is garbage. */
cudaError_t take(void **out, size_t bytes, Home home)
{
    Lock lock(runtime_mutex());
    constexpr size_t around = 8192, filled = size_t{64} << 20;
    *out = nullptr;
    unsafe("an allocation");
    if (bytes == 0) {
        return cudaSuccess;
    }
    if (bytes > (size_t)settings().memory_mb << 20) {
        return done(cudaErrorMemoryAllocation);
    }
    void *memory = mmap(nullptr, bytes + around, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        return done(cudaErrorMemoryAllocation);
    }
    if (bytes <= filled) {
        memset(memory, 0xcb, bytes);
    }
    given()[memory] = bytes + around;
    memory_add(memory, bytes, home);
    *out = memory;
    return cudaSuccess;
}

cudaError_t give(void *memory)
{
    Lock lock(runtime_mutex());
    if (!memory) {
        return cudaSuccess;
    }
    streams_drain_all();
    if (!given().count(memory)) {
        report("RUNTIME-FREE", "", "of what was not allocated");
        return done(cudaErrorInvalidValue);
    }
    memory_remove(memory);
    munmap(memory, given()[memory]);
    given().erase(memory);
    return cudaSuccess;
}

void check_range(const void *at, size_t bytes, const char *what)
{
    const Allocation *a = memory_at((u64)at);
    if (a && bytes && (u64)at + bytes > a->base + a->bytes) {
        report("RUNTIME-OOB", what,
               std::to_string(bytes) + " bytes, of which the allocation has " +
                   std::to_string(a->base + a->bytes - (u64)at));
    }
}

void copy(void *to, const void *from, size_t bytes)
{
    check_range(to, bytes, "copy to");
    check_range(from, bytes, "copy from");
    memmove(to, from, bytes);
    memory_defined(to, bytes);
}

void fill(void *at, int value, size_t bytes)
{
    check_range(at, bytes, "memset");
    memset(at, value, bytes);
    memory_defined(at, bytes);
}

/* ---- kernels ---- */

struct Named {
    std::string name;
    const Kernel *kernel;
};

std::map<const void *, Named> &functions()
{
    static auto *all = new std::map<const void *, Named>;
    return *all;
}

cudaError_t start(const void *function, dim3 grid, dim3 block, void **args, size_t shared,
                  cudaStream_t stream)
{
    Lock lock(runtime_mutex());
    const auto found = functions().find(function);
    call_counts()["launches"]++;
    if (found == functions().end()) {
        report("RUNTIME-LAUNCH", "", "of what is no kernel");
        return done(cudaErrorInvalidDeviceFunction);
    }
    Named &named = found->second;
    named.kernel = named.kernel ? named.kernel : find_kernel(named.name);
    const Kernel *kernel = named.kernel;
    if (!kernel) {
        report("RUNTIME-LAUNCH", named.name, "there is no PTX of it");
        return done(cudaErrorNoKernelImageForDevice);
    }
    auto values = std::make_shared<std::vector<std::vector<char>>>();
    for (size_t i = 0; i < kernel->parameters.size(); i++) {
        const char *from = (const char *)args[i];
        values->emplace_back(from, from + kernel->parameters[i].bytes);
    }
    const auto run = [=] {
        const u32 g[] = {grid.x, grid.y, grid.z}, b[] = {block.x, block.y, block.z};
        std::vector<const void *> parameters;
        for (const std::vector<char> &value : *values) {
            parameters.push_back(value.data());
        }
        launch(kernel, g, b, shared, parameters);
    };
    stream_push(stream_of(stream), {run, nullptr, nullptr, 0});
    return cudaSuccess;
}

/* ---- handles ---- */

std::map<cudaEvent_t, std::shared_ptr<Event>> &events()
{
    static auto *all = new std::map<cudaEvent_t, std::shared_ptr<Event>>;
    return *all;
}

std::map<cudaGraph_t, std::shared_ptr<Graph>> &graphs()
{
    static auto *all = new std::map<cudaGraph_t, std::shared_ptr<Graph>>;
    return *all;
}

} // namespace

extern "C" {

/* ---- what nvcc's objects call ---- */

void **__cudaRegisterFatBinary(void *)
{
    static void *handle[1];
    return handle;
}

void __cudaRegisterFatBinaryEnd(void **)
{
}

void __cudaUnregisterFatBinary(void **)
{
}

void __cudaRegisterFunction(void **, const char *host, char *, const char *name, int, uint3 *, uint3 *,
                            dim3 *, dim3 *, int *)
{
    Lock lock(runtime_mutex());
    functions()[host] = {name, nullptr};
}

void __cudaRegisterVar(void **, char *, char *, const char *, int, size_t, int, int)
{
}

/* <<<>>> */
struct Configuration {
    dim3 grid, block;
    size_t shared;
    void *stream;
};

static thread_local std::vector<Configuration> configurations;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream)
{
    configurations.push_back({grid, block, shared, stream});
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream)
{
    const Configuration top = configurations.back();
    configurations.pop_back();
    *grid = top.grid;
    *block = top.block;
    *shared = top.shared;
    *(void **)stream = top.stream;
    return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function)
{
    *kernel = (cudaKernel_t)function;
    return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args, size_t shared,
                               cudaStream_t stream)
{
    return start((const void *)kernel, grid, block, args, shared, stream);
}

cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **args, size_t shared,
                             cudaStream_t stream)
{
    return start(function, grid, block, args, shared, stream);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *function)
{
    Lock lock(runtime_mutex());
    memset(attributes, 0, sizeof(*attributes));
    attributes->maxThreadsPerBlock = 1024;
    return functions().count(function) ? cudaSuccess : done(cudaErrorInvalidDeviceFunction);
}

/* ---- memory ---- */

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    return take(out, bytes, Home::device);
}

cudaError_t cudaMallocManaged(void **out, size_t bytes, unsigned)
{
    return take(out, bytes, Home::managed);
}

cudaError_t cudaMallocHost(void **out, size_t bytes)
{
    return take(out, bytes, Home::pinned);
}

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned)
{
    return take(out, bytes, Home::pinned);
}

cudaError_t cudaFree(void *memory)
{
    return give(memory);
}

cudaError_t cudaFreeHost(void *memory)
{
    return give(memory);
}

cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned)
{
    Lock lock(runtime_mutex());
    memory_add(memory, bytes, Home::pinned);
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *memory)
{
    Lock lock(runtime_mutex());
    streams_drain_all();
    return memory_remove(memory) ? cudaSuccess : done(cudaErrorInvalidValue);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind)
{
    Lock lock(runtime_mutex());
    unsafe("cudaMemcpy");
    if (settings().last_error && last_error != cudaSuccess) {
        report("LAST-ERROR-LEFT", "", "cudaGetLastError() would find " + std::to_string(last_error));
    }
    streams_drain_legacy();
    copy(to, from, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemset(void *at, int value, size_t bytes)
{
    Lock lock(runtime_mutex());
    unsafe("cudaMemset");
    streams_drain_legacy();
    fill(at, value, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind, cudaStream_t on)
{
    Lock lock(runtime_mutex());
    call_counts()["copies"]++;
    Stream *stream = stream_of(on);
    const bool pageable = !memory_at((u64)to) || !memory_at((u64)from);
    if (pageable && stream->capture) {
        report("CAPTURE-PAGEABLE", "", "a copy of memory that is not pinned in a capture");
    }
    stream_push(stream, {[=] { copy(to, from, bytes); }, nullptr, nullptr, 0});
    if (pageable && !stream->capture) {
        stream_drain(stream);
    }
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *at, int value, size_t bytes, cudaStream_t on)
{
    Lock lock(runtime_mutex());
    call_counts()["copies"]++;
    stream_push(stream_of(on), {[=] { fill(at, value, bytes); }, nullptr, nullptr, 0});
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    *available = *total = (size_t)settings().memory_mb << 20;
    return cudaSuccess;
}

/* ---- streams ---- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    Lock lock(runtime_mutex());
    *out = (cudaStream_t)stream_create(!(flags & cudaStreamNonBlocking));
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int)
{
    return cudaStreamCreateWithFlags(out, flags);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    Lock lock(runtime_mutex());
    if (!stream_destroy(stream_of(stream))) {
        report("RUNTIME-STREAM", "", "what was destroyed is no stream");
        return done(cudaErrorInvalidResourceHandle);
    }
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t on)
{
    Lock lock(runtime_mutex());
    Stream *stream = stream_of(on);
    if (stream->capture) {
        report("CAPTURE-SYNC", "", "a stream that is captured was waited for");
        return done(cudaErrorStreamCaptureUnsupported);
    }
    unsafe("cudaStreamSynchronize");
    stream == default_stream() ? streams_drain_legacy() : stream_drain(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t on)
{
    Lock lock(runtime_mutex());
    Stream *stream = stream_of(on);
    unsafe("cudaStreamQuery");
    if (stream->work.empty()) {
        return cudaSuccess;
    }
    stream_drain(stream);
    return done(cudaErrorNotReady);
}

cudaError_t cudaDeviceSynchronize(void)
{
    Lock lock(runtime_mutex());
    unsafe("cudaDeviceSynchronize");
    streams_drain_all();
    return cudaSuccess;
}

/* ---- events ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned)
{
    Lock lock(runtime_mutex());
    static u64 next = 0x1000;
    *out = (cudaEvent_t)(next += 16);
    events()[*out] = std::make_shared<Event>();
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *out)
{
    return cudaEventCreateWithFlags(out, 0);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    Lock lock(runtime_mutex());
    return events().erase(event) ? cudaSuccess : done(cudaErrorInvalidResourceHandle);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t on)
{
    Lock lock(runtime_mutex());
    call_counts()["events"]++;
    const std::shared_ptr<Event> &e = events().at(event);
    Stream *stream = stream_of(on);
    e->graph = stream->capture;
    if (!e->graph) {
        e->recorded++;
        e->stream = stream;
        e->polls = 0;
        stream_push(stream, {nullptr, nullptr, e, e->recorded});
    }
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t on, cudaEvent_t event, unsigned)
{
    Lock lock(runtime_mutex());
    call_counts()["events"]++;
    const std::shared_ptr<Event> &e = events().at(event);
    Stream *stream = stream_of(on);
    if (e->graph) {
        stream->capture = e->graph;
    } else if (stream->capture) {
        report("CAPTURE-WAIT", "", "a captured stream waits for an event from outside");
    } else if (e->recorded) {
        stream_push(stream, {nullptr, e, nullptr, e->recorded});
    }
    return cudaSuccess;
}

/* The runtime keeps "not ready" as the last error. */
cudaError_t cudaEventQuery(cudaEvent_t event)
{
    Lock lock(runtime_mutex());
    const std::shared_ptr<Event> &e = events().at(event);
    unsafe("cudaEventQuery");
    if (!e->ready() && e->polls++ >= 2) {
        event_drain(e.get());
    }
    return e->ready() ? cudaSuccess : done(cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    Lock lock(runtime_mutex());
    unsafe("cudaEventSynchronize");
    event_drain(events().at(event).get());
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end)
{
    Lock lock(runtime_mutex());
    *ms = std::max(1e-3f, (float)((events().at(end)->when - events().at(begin)->when) * 1e3));
    return cudaSuccess;
}

/* ---- graphs ---- */

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode)
{
    std::swap(*mode, capture_mode);
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t on, cudaStreamCaptureMode mode)
{
    Lock lock(runtime_mutex());
    stream_of(on)->capture = std::make_shared<Graph>();
    stream_of(on)->capture->global = mode == cudaStreamCaptureModeGlobal;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t on, cudaGraph_t *out)
{
    Lock lock(runtime_mutex());
    const std::shared_ptr<Graph> graph = stream_of(on)->capture;
    if (!graph) {
        return done(cudaErrorIllegalState);
    }
    capture_end(graph);
    *out = (cudaGraph_t)graph.get();
    graphs()[*out] = graph;
    return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t on, cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *, const cudaGraphNode_t **, const cudaGraphEdgeData **,
                                     size_t *)
{
    Lock lock(runtime_mutex());
    const Graph *graph = stream_of(on)->capture.get();
    *status = graph ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    if (id) {
        *id = (unsigned long long)graph;
    }
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t on, cudaStreamCaptureStatus *status)
{
    return cudaStreamGetCaptureInfo(on, status, nullptr, nullptr, nullptr, nullptr, nullptr);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long)
{
    Lock lock(runtime_mutex());
    *out = (cudaGraphExec_t) new std::shared_ptr<Graph>(graphs().at(graph));
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags)
{
    return cudaGraphInstantiate(out, graph, flags);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t on)
{
    Lock lock(runtime_mutex());
    const std::shared_ptr<Graph> graph = *(std::shared_ptr<Graph> *)exec;
    const auto run = [=] {
        for (const auto &each : graph->work) {
            each();
        }
    };
    stream_push(stream_of(on), {run, nullptr, nullptr, 0});
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    Lock lock(runtime_mutex());
    graphs().erase(graph);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    Lock lock(runtime_mutex());
    delete (std::shared_ptr<Graph> *)exec;
    return cudaSuccess;
}

/* ---- the device ---- */

cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    return device == 0 ? cudaSuccess : done(cudaErrorInvalidDevice);
}

cudaError_t cudaGetDeviceCount(int *n)
{
    *n = 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int)
{
    switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
        *value = (int)settings().processors;
        break;
    case cudaDevAttrComputeCapabilityMajor:
        *value = (int)settings().capability / 10;
        break;
    case cudaDevAttrComputeCapabilityMinor:
        *value = (int)settings().capability % 10;
        break;
    case cudaDevAttrWarpSize:
        *value = 32;
        break;
    case cudaDevAttrGPUDirectRDMAWritesOrdering:
        *value = cudaGPUDirectRDMAWritesOrderingAllDevices;
        break;
    default:
        *value = 0;
    }
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *out, int)
{
    memset(out, 0, sizeof(*out));
    strcpy(out->name, "the PTX machine");
    out->major = (int)settings().capability / 10;
    out->minor = (int)settings().capability % 10;
    out->multiProcessorCount = (int)settings().processors;
    out->warpSize = 32;
    out->totalGlobalMem = (size_t)settings().memory_mb << 20;
    out->l2CacheSize = 1 << 20;
    out->memoryBusWidth = 128;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int)
{
    snprintf(text, (size_t)size, "0000:00:00.0");
    return cudaSuccess;
}

cudaError_t cudaDeviceFlushGPUDirectRDMAWrites(cudaFlushGPUDirectRDMAWritesTarget,
                                               cudaFlushGPUDirectRDMAWritesScope)
{
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = settings().driver ? (int)settings().driver : CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = settings().runtime ? (int)settings().runtime : CUDART_VERSION;
    return cudaSuccess;
}

/* ---- errors ---- */

cudaError_t cudaGetLastError(void)
{
    const cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

const char *cudaGetErrorString(cudaError_t error)
{
    static thread_local char text[48];
    snprintf(text, sizeof(text), error == cudaSuccess ? "no error" : "CUDA error %d", (int)error);
    return text;
}

const char *cudaGetErrorName(cudaError_t error)
{
    return error == cudaSuccess ? "cudaSuccess" : "a CUDA error";
}
}
