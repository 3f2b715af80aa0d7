/* The codecs on a GPU: buffers, graphs, times. */
#include "bench/codecs/gpu.h"

#include <stdlib.h>
#include <string.h>

const char *qg_op_name(int op)
{
    return op == QG_ADAMW ? "adamw_encode_delta" : qb_op_name((qb_op_t)op);
}

#ifndef TW_HAVE_CUDA

static tw_status_t without_cuda(void)
{
    tw_error("bench: this program was built without CUDA");
    return TW_ERR_UNSUPPORTED;
}

tw_status_t qg_device(qg_gpu_t *device)
{
    (void)device;
    return without_cuda();
}

tw_status_t qg_measure(const qg_case_t *c, qg_result_t *result)
{
    (void)c, (void)result;
    return without_cuda();
}

#else

#include <cuda_runtime_api.h>

#define ALIGN_BYTES ((size_t)256)
/* All sets of buffers together: several times any GPU's cache. */
#define ARENA_BYTES ((size_t)768 << 20)
#define MAX_SETS 256
#define MIN_SAMPLES 5
#define MAX_SAMPLES 1000

#define CUDA_TRY(call) tw_quant_cuda_status((int)(call), #call)

/* Offsets in a set of buffers; what an operation does not need is empty. */
typedef struct layout {
    size_t plain, target, master, m, v, inputs, output, bytes;
    size_t segment_elems, segment_in, segment_out; /* of all segments but the last, encoded in bytes */
    size_t input_stride;                           /* bytes from one input of a reduction to the next */
    double moved;
} layout_t;

typedef struct rig {
    const qg_case_t *c;
    layout_t at;
    size_t n_sets;
    uint8_t *arena;
    tw_quant_t *in, *out;
    cudaStream_t stream;
    cudaEvent_t start, stop;
    tw_quant_segment_t *segments;
    tw_quant_reduce_segment_t *reduce_segments;
    tw_quant_adamw_segment_t *adamw_segments;
    const void **srcs; /* [n_segments][n_inputs] */
} rig_t;

/* ---- buffers ------------------------------------------------------------------------------------------- */

static size_t take(layout_t *at, size_t bytes, double passes)
{
    size_t offset = at->bytes;
    at->bytes += (bytes + ALIGN_BYTES - 1) & ~(ALIGN_BYTES - 1);
    at->moved += passes * (double)bytes;
    return offset;
}

static int is_reduction(int op)
{
    return op == QB_REDUCE_ENCODE || op == QB_REDUCE_DECODE;
}

static int has_encoded_inputs(int op)
{
    return op != QB_ENCODE && op != QB_ENCODE_DELTA && op != QG_ADAMW;
}

/** `plain` is there for all: inputs are encoded from it. */
static layout_t layout_of(const qg_case_t *c)
{
    layout_t at = {0};
    size_t plain = c->n_elems * tw_type_bytes(c->type), fp32 = c->n_elems * 4,
           inputs = is_reduction(c->op) ? c->n_inputs : 1;
    int op = c->op, adamw = op == QG_ADAMW;
    at.segment_elems = (c->n_elems + c->n_segments - 1) / c->n_segments;
    at.segment_in = tw_quant_encoded_bytes(&c->codec, at.segment_elems);
    at.segment_out = tw_quant_encoded_bytes(&c->out, at.segment_elems);
    at.input_stride = (at.segment_in * c->n_segments + ALIGN_BYTES - 1) & ~(ALIGN_BYTES - 1);
    at.plain = take(&at, plain, op == QB_ENCODE || op == QB_ENCODE_DELTA || adamw ? 1 : 0);
    if (op == QB_DECODE || op == QB_DECODE_APPLY || op == QB_REDUCE_DECODE || adamw) {
        at.target = take(&at, plain, op == QB_DECODE_APPLY ? 2 : 1);
    }
    if (op == QB_DECODE_ADD || op == QB_ENCODE_DELTA || adamw) {
        at.master = take(&at, fp32, op == QB_ENCODE_DELTA ? 1 : 2);
    }
    if (adamw) {
        at.m = take(&at, fp32, 2);
        at.v = take(&at, fp32, 2);
    }
    if (has_encoded_inputs(op)) {
        at.inputs = take(&at, inputs * at.input_stride, 1);
    }
    if (op == QB_ENCODE || op == QB_ENCODE_DELTA || op == QB_REDUCE_ENCODE || adamw) {
        at.output = take(&at, at.segment_out * c->n_segments, 1);
    }
    if ((double)at.bytes < at.moved) {
        at.bytes = ((size_t)at.moved + ALIGN_BYTES - 1) & ~(ALIGN_BYTES - 1); /* the copy moves as much */
    }
    return at;
}

static size_t elems_of(const rig_t *rig, size_t segment)
{
    size_t first = segment * rig->at.segment_elems, left = rig->c->n_elems - first;
    return first >= rig->c->n_elems ? 0 : left < rig->at.segment_elems ? left : rig->at.segment_elems;
}

/** A sum of uniforms, near enough to a normal distribution. */
static void fill(float *values, size_t n)
{
    uint64_t state = 1;
    for (size_t i = 0; i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        values[i] = ((float)(state >> 48) + (float)(state >> 32 & 0xffff)) * 0x1p-15f - 2.0f;
    }
}

static tw_status_t upload(const rig_t *rig, const float *values, void *plain)
{
    const qg_case_t *c = rig->c;
    size_t fp32 = c->n_elems * 4, bytes = c->n_elems * tw_type_bytes(c->type);
    const layout_t *at = &rig->at;
    tw_convert_from_fp32(c->type, values, 1.0f, plain, c->n_elems);
    for (size_t set = 0; set < rig->n_sets; set++) {
        uint8_t *base = rig->arena + set * at->bytes;
        TW_TRY(CUDA_TRY(cudaMemset(base, 0, at->bytes)));
        TW_TRY(CUDA_TRY(cudaMemcpy(base + at->plain, plain, bytes, cudaMemcpyHostToDevice)));
        if (at->target) {
            TW_TRY(CUDA_TRY(cudaMemcpy(base + at->target, plain, bytes, cudaMemcpyHostToDevice)));
        }
        if (at->master) {
            TW_TRY(CUDA_TRY(cudaMemcpy(base + at->master, values, fp32, cudaMemcpyHostToDevice)));
        }
    }
    return TW_OK;
}

static tw_status_t encode_inputs(const rig_t *rig, size_t set)
{
    const layout_t *at = &rig->at;
    uint8_t *base = rig->arena + set * at->bytes;
    tw_quant_args_t args = {.type = rig->c->type, .stream = rig->stream};
    size_t inputs = is_reduction(rig->c->op) ? rig->c->n_inputs : 1;
    for (size_t k = 0; k < inputs; k++) {
        for (size_t s = 0; s < rig->c->n_segments; s++) {
            size_t first = s * at->segment_elems;
            tw_quant_segment_t segment = {.src = base + at->plain + first * tw_type_bytes(rig->c->type),
                                          .dst =
                                              base + at->inputs + k * at->input_stride + s * at->segment_in,
                                          .n_elems = elems_of(rig, s)};
            TW_TRY(tw_quant_encode(rig->in, &args, &segment, 1));
        }
    }
    return TW_OK;
}

static tw_status_t prepare(const rig_t *rig)
{
    float *values = malloc(rig->c->n_elems * sizeof(float));
    void *plain = malloc(rig->c->n_elems * sizeof(float));
    tw_status_t status = values && plain ? TW_OK : TW_ERR_NO_MEMORY;
    if (status == TW_OK) {
        fill(values, rig->c->n_elems);
        status = upload(rig, values, plain);
    } else {
        tw_error("bench: no memory for %zu elements", rig->c->n_elems);
    }
    free(values);
    free(plain);
    if (status == TW_OK) { /* the encoders' stream does not wait for copies */
        status = CUDA_TRY(cudaDeviceSynchronize());
    }
    for (size_t set = 0; status == TW_OK && has_encoded_inputs(rig->c->op) && set < rig->n_sets; set++) {
        status = encode_inputs(rig, set);
    }
    return status;
}

/* ---- the operation ------------------------------------------------------------------------------------- */

static tw_status_t run_adamw(rig_t *rig, const tw_quant_args_t *args, uint8_t *base)
{
    const layout_t *at = &rig->at;
    const tw_quant_adamw_t adamw = {.lr = 1e-3,
                                    .beta1 = 0.9,
                                    .beta2 = 0.95,
                                    .eps = 1e-8,
                                    .weight_decay = 0.1,
                                    .step = 10,
                                    .grad_type = args->type};
    size_t bytes = tw_type_bytes(args->type);
    for (size_t s = 0; s < rig->c->n_segments; s++) {
        size_t first = s * at->segment_elems;
        rig->adamw_segments[s] = (tw_quant_adamw_segment_t){
            .grad = base + at->plain + first * bytes,
            .master = (float *)(base + at->master) + first,
            .m = (float *)(base + at->m) + first,
            .v = (float *)(base + at->v) + first,
            .replica = base + at->target + first * bytes,
            .dst = base + at->output + s * at->segment_out,
            .n_elems = elems_of(rig, s),
        };
    }
    return tw_quant_adamw_encode_delta(rig->out, args, &adamw, rig->adamw_segments, rig->c->n_segments);
}

static tw_status_t run_reduction(rig_t *rig, const tw_quant_args_t *args, uint8_t *base)
{
    const layout_t *at = &rig->at;
    size_t n_inputs = rig->c->n_inputs, n_segments = rig->c->n_segments;
    for (size_t s = 0; s < n_segments; s++) {
        const void **srcs = rig->srcs + s * n_inputs;
        for (size_t k = 0; k < n_inputs; k++) {
            srcs[k] = base + at->inputs + k * at->input_stride + s * at->segment_in;
        }
        uint8_t *plain = base + at->target + s * at->segment_elems * tw_type_bytes(args->type);
        uint8_t *encoded = base + at->output + s * at->segment_out;
        rig->reduce_segments[s] =
            (tw_quant_reduce_segment_t){.srcs = srcs,
                                        .n_srcs = n_inputs,
                                        .dst = rig->c->op == QB_REDUCE_DECODE ? plain : encoded,
                                        .n_elems = elems_of(rig, s)};
    }
    if (rig->c->op == QB_REDUCE_DECODE) {
        return tw_quant_reduce_decode(rig->in, args, rig->reduce_segments, n_segments);
    }
    return tw_quant_reduce_encode(rig->in, rig->out, args, rig->reduce_segments, n_segments);
}

static void set_segments(rig_t *rig, uint8_t *base)
{
    const layout_t *at = &rig->at;
    size_t bytes = tw_type_bytes(rig->c->type);
    for (size_t s = 0; s < rig->c->n_segments; s++) {
        size_t first = s * at->segment_elems;
        uint8_t *input = base + at->inputs + s * at->segment_in,
                *output = base + at->output + s * at->segment_out;
        uint8_t *plain = base + at->plain + first * bytes, *target = base + at->target + first * bytes;
        uint8_t *master = base + at->master + first * 4;
        tw_quant_segment_t segment = {.n_elems = elems_of(rig, s), .base = plain};
        segment.src = rig->c->op == QB_ENCODE ? plain : rig->c->op == QB_ENCODE_DELTA ? master : input;
        segment.dst = rig->c->op == QB_DECODE_ADD ? master : has_encoded_inputs(rig->c->op) ? target : output;
        rig->segments[s] = segment;
    }
}

/** Enqueue the operation on one set of buffers. */
static tw_status_t run_op(rig_t *rig, size_t set)
{
    static tw_status_t (*const ops[])(tw_quant_t *, const tw_quant_args_t *, const tw_quant_segment_t *,
                                      size_t) = {
        [QB_ENCODE] = tw_quant_encode,
        [QB_DECODE] = tw_quant_decode,
        [QB_DECODE_ADD] = tw_quant_decode_add,
        [QB_ENCODE_DELTA] = tw_quant_encode_delta,
        [QB_DECODE_APPLY] = tw_quant_decode_apply,
    };
    const tw_quant_args_t args = {.type = rig->c->type,
                                  .seed = 1,
                                  .step = 1,
                                  .factor = 1.0f / (float)rig->c->n_inputs,
                                  .stream = rig->stream};
    uint8_t *base = rig->arena + set * rig->at.bytes;
    if (rig->c->op == QG_ADAMW) {
        return run_adamw(rig, &args, base);
    }
    if (is_reduction(rig->c->op)) {
        return run_reduction(rig, &args, base);
    }
    set_segments(rig, base);
    return ops[rig->c->op](has_encoded_inputs(rig->c->op) ? rig->in : rig->out, &args, rig->segments,
                           rig->c->n_segments);
}

static tw_status_t run_copy(rig_t *rig, size_t set)
{
    size_t half = (size_t)(rig->at.moved / 2);
    uint8_t *base = rig->arena + set * rig->at.bytes;
    return CUDA_TRY(cudaMemcpyAsync(base + half, base, half, cudaMemcpyDeviceToDevice, rig->stream));
}

/* ---- times --------------------------------------------------------------------------------------------- */

static tw_status_t capture(rig_t *rig, tw_status_t (*run)(rig_t *, size_t), cudaGraphExec_t *exec)
{
    cudaGraph_t graph = NULL;
    tw_status_t status = TW_OK, ended;
    TW_TRY(CUDA_TRY(cudaStreamBeginCapture(rig->stream, cudaStreamCaptureModeThreadLocal)));
    for (size_t set = 0; status == TW_OK && set < rig->n_sets; set++) {
        status = run(rig, set);
    }
    ended = CUDA_TRY(cudaStreamEndCapture(rig->stream, &graph));
    if (status == TW_OK) {
        status = ended;
    }
    if (status == TW_OK) {
        status = CUDA_TRY(cudaGraphInstantiateWithFlags(exec, graph, 0));
    }
    if (graph) {
        cudaGraphDestroy(graph);
    }
    return status;
}

/** Seconds of one operation in a replay of all sets. */
static tw_status_t replay(rig_t *rig, cudaGraphExec_t exec, double *sec)
{
    float ms = 0;
    TW_TRY(CUDA_TRY(cudaEventRecord(rig->start, rig->stream)));
    TW_TRY(CUDA_TRY(cudaGraphLaunch(exec, rig->stream)));
    TW_TRY(CUDA_TRY(cudaEventRecord(rig->stop, rig->stream)));
    TW_TRY(CUDA_TRY(cudaEventSynchronize(rig->stop)));
    TW_TRY(CUDA_TRY(cudaEventElapsedTime(&ms, rig->start, rig->stop)));
    *sec = (double)ms * 1e-3 / (double)rig->n_sets;
    return TW_OK;
}

static tw_status_t time_graph(rig_t *rig, tw_status_t (*run)(rig_t *, size_t), double *median)
{
    double samples[MAX_SAMPLES], warm_up;
    cudaGraphExec_t exec = NULL;
    tw_status_t status = capture(rig, run, &exec);
    for (int i = 0; status == TW_OK && i < 3; i++) {
        status = replay(rig, exec, &warm_up);
    }
    size_t n = 0;
    double start = tw_time_sec();
    while (status == TW_OK && n < MAX_SAMPLES &&
           (n < MIN_SAMPLES || tw_time_sec() - start < rig->c->seconds)) {
        status = replay(rig, exec, &samples[n++]);
    }
    if (exec) {
        cudaGraphExecDestroy(exec);
    }
    if (status != TW_OK) {
        return status;
    }
    *median = tw_median(samples, n);
    return TW_OK;
}

/* ---- the rig ------------------------------------------------------------------------------------------- */

static tw_status_t allocate(rig_t *rig)
{
    size_t n = rig->c->n_segments;
    rig->at = layout_of(rig->c);
    rig->n_sets = ARENA_BYTES / rig->at.bytes;
    rig->n_sets = rig->n_sets < 2 ? 2 : rig->n_sets > MAX_SETS ? MAX_SETS : rig->n_sets;
    rig->segments = calloc(n, sizeof(*rig->segments));
    rig->reduce_segments = calloc(n, sizeof(*rig->reduce_segments));
    rig->adamw_segments = calloc(n, sizeof(*rig->adamw_segments));
    rig->srcs = calloc(n * rig->c->n_inputs, sizeof(*rig->srcs));
    if (!rig->segments || !rig->reduce_segments || !rig->adamw_segments || !rig->srcs) {
        tw_error("bench: no memory for %zu segments", n);
        return TW_ERR_NO_MEMORY;
    }
    return CUDA_TRY(cudaMalloc((void **)&rig->arena, rig->n_sets * rig->at.bytes));
}

static tw_status_t setup(rig_t *rig)
{
    const tw_quant_params_t in = {.codec = rig->c->codec, .mem = TW_MEM_CUDA},
                            out = {.codec = rig->c->out, .mem = TW_MEM_CUDA};
    TW_TRY(tw_quant_create(&in, &rig->in));
    TW_TRY(tw_quant_create(&out, &rig->out));
    TW_TRY(CUDA_TRY(cudaStreamCreateWithFlags(&rig->stream, cudaStreamNonBlocking)));
    TW_TRY(CUDA_TRY(cudaEventCreate(&rig->start)));
    TW_TRY(CUDA_TRY(cudaEventCreate(&rig->stop)));
    TW_TRY(allocate(rig));
    TW_TRY(prepare(rig));
    return CUDA_TRY(cudaDeviceSynchronize());
}

static void cleanup(rig_t *rig)
{
    if (rig->stop) {
        cudaEventDestroy(rig->stop);
    }
    if (rig->start) {
        cudaEventDestroy(rig->start);
    }
    if (rig->stream) {
        cudaStreamDestroy(rig->stream);
    }
    cudaFree(rig->arena);
    tw_quant_destroy(rig->out);
    tw_quant_destroy(rig->in);
    free(rig->srcs);
    free(rig->adamw_segments);
    free(rig->reduce_segments);
    free(rig->segments);
}

tw_status_t qg_measure(const qg_case_t *c, qg_result_t *result)
{
    rig_t rig = {.c = c};
    tw_status_t status = setup(&rig);
    if (status == TW_OK) {
        status = time_graph(&rig, run_op, &result->op_sec);
    }
    if (status == TW_OK) {
        status = time_graph(&rig, run_copy, &result->copy_sec);
    }
    result->moved_bytes = rig.at.moved;
    cleanup(&rig);
    return status;
}

/** The kernel module's version, "" if the system does not say:
 *  "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul ..." */
static void module_version(char *version, size_t version_bytes)
{
    char line[256] = "";
    FILE *file = fopen("/proc/driver/nvidia/version", "re");
    version[0] = '\0';
    if (!file) {
        return;
    }
    if (fgets(line, sizeof(line), file)) {
        char *save = NULL;
        for (char *word = strtok_r(line, " \t", &save); word; word = strtok_r(NULL, " \t", &save)) {
            if (word[0] >= '0' && word[0] <= '9' && strchr(word, '.')) {
                snprintf(version, version_bytes, "%s ", word);
                break;
            }
        }
    }
    fclose(file);
}

tw_status_t qg_device(qg_gpu_t *device)
{
    struct cudaDeviceProp properties;
    int number = 0, driver = 0, runtime = 0;
    char module[32];
    TW_TRY(CUDA_TRY(cudaGetDevice(&number)));
    TW_TRY(CUDA_TRY(cudaGetDeviceProperties(&properties, number)));
    TW_TRY(CUDA_TRY(cudaDriverGetVersion(&driver)));
    TW_TRY(CUDA_TRY(cudaRuntimeGetVersion(&runtime)));
    module_version(module, sizeof(module));
    snprintf(device->name, sizeof(device->name), "%.127s", properties.name);
    snprintf(device->driver, sizeof(device->driver), "%s(CUDA %d.%d)", module, driver / 1000,
             driver % 1000 / 10);
    snprintf(device->runtime, sizeof(device->runtime), "%d.%d", runtime / 1000, runtime % 1000 / 10);
    return TW_OK;
}

#endif
