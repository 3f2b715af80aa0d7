/* What kernels do for an element: instructions, bytes of memory and launches, as JSON lines. Nothing of it is
 * a time: docs/gpu_step.py reads it. */
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>

#include <cuda_runtime_api.h>

#include "bench/codecs/rig.h"
#include "tests/collectives/quantized/quantized.h"
#include "tests/gpu/entropy_bench.h"
#include "tests/gpu/ptx/report.h"
#include "tests/gpu/ptx/settings.h"
#include "trainer/cuda/attention.h"

namespace tw::ptx
{

namespace
{

FILE *out = stdout;

void need(bool good, const char *what)
{
    if (!good) {
        fprintf(stderr, "counts: %s\n", what);
        exit(1);
    }
}

/* Memory of the machine. */
class Memory
{
  public:
    explicit Memory(size_t bytes)
    {
        need(cudaMalloc(&data, bytes) == cudaSuccess && cudaMemset(data, 0, bytes) == cudaSuccess,
             "no memory");
    }
    ~Memory()
    {
        (void)cudaFree(data);
    }
    Memory(const Memory &) = delete;
    Memory &operator=(const Memory &) = delete;

    void *data = nullptr;
};

Count sum_of_counts()
{
    Count all;
    for (const auto &[name, one] : counts()) {
        uint64_t *to = &all.launches;
        const uint64_t *from = &one.launches;
        for (size_t i = 0; i < sizeof(Count) / sizeof(uint64_t); i++) {
            to[i] += from[i];
        }
    }
    return all;
}

/* What is written of one operation: per element where it says so. floor_bytes: that it has to read and
 * write. */
struct Line {
    const char *op, *codec, *type;
    size_t elems, message_bytes, segments, inputs;
    double floor_bytes;
};

void write_line(const Line &line)
{
    const Count c = sum_of_counts();
    const double n = (double)line.elems, moved = 32.0 * (double)c.touched;
    const auto each = [&](uint64_t value) { return (double)value / n; };
    fprintf(
        out,
        "{\"table\": \"gpu_counts\", \"op\": \"%s\", \"codec\": \"%s\", \"type\": \"%s\", \"elems\": %zu, "
        "\"message_bytes\": %zu, \"segments\": %zu, \"inputs\": %zu, \"launches\": %llu, "
        "\"warps\": %llu, \"warp_instructions\": %llu, \"longest_warp\": %llu, "
        "\"instructions_per_elem\": %.3f, \"lanes_per_instruction\": %.2f, \"load_bytes_per_elem\": %.3f, "
        "\"store_bytes_per_elem\": %.3f, \"sector_bytes_per_elem\": %.3f, "
        "\"moved_bytes_per_elem\": %.3f, \"floor_bytes_per_elem\": %.3f, "
        "\"bytes_over_floor\": %.3f, \"shared_per_elem\": %.3f, \"atomics_per_elem\": %.4f, "
        "\"products\": %llu}\n",
        line.op, line.codec, line.type, line.elems, line.message_bytes, line.segments, line.inputs,
        (unsigned long long)c.launches, (unsigned long long)c.warps, (unsigned long long)c.instructions,
        (unsigned long long)c.longest, 32 * each(c.instructions), (double)c.lanes / (double)c.instructions,
        each(c.loaded), each(c.stored), 32 * each(c.sectors), moved / n, line.floor_bytes / n,
        moved / line.floor_bytes, each(c.shared), each(c.atomics), (unsigned long long)c.products);
    fflush(out);
}

/* ---- codecs of blocks ---------------------------------------------------------------------------------- */

tw_status_t copy_in(void *to, const void *from, size_t bytes)
{
    return cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice) == cudaSuccess ? TW_OK : TW_ERR_CUDA;
}

void count_block(const char *codec, int op, tw_type_t type, size_t elems, size_t segments)
{
    static const cb_memory_t memory = {TW_MEM_CUDA, nullptr, copy_in};
    cb_case_t c = {op, {}, {}, type, elems, segments, 8, 0};
    need(tw_quant_codec_parse(codec, &c.codec) == TW_OK, codec);
    c.out = c.codec;
    if (!cb_op_takes(op, &c.codec)) {
        return;
    }
    cb_rig_t rig;
    need(cb_rig_init(&rig, &c, &memory) == TW_OK, "no codec");
    const Memory arena(rig.at.bytes);
    rig.n_sets = 1;
    rig.arena = (uint8_t *)arena.data;
    need(cb_rig_fill(&rig) == TW_OK, "no values");
    clear_counts();
    need(cb_rig_run(&rig, 0) == TW_OK, "the operation failed");
    write_line({cb_op_name(op), codec, tw_type_name(type), elems, tw_quant_encoded_bytes(&c.codec, elems),
                segments, op == CB_REDUCE_ENCODE || op == CB_REDUCE_DECODE ? c.n_inputs : 1, rig.at.moved});
    cb_rig_cleanup(&rig);
}

void count_blocks(size_t elems)
{
    for (const char *codec : {"int8", "int4", "int4:hadamard", "int4:stochastic", "fp8"}) {
        for (int op = 0; op < CB_OP_COUNT; op++) {
            count_block(codec, op, TW_TYPE_BF16, elems, 1);
        }
    }
    for (int op : {int(CB_ENCODE), int(CB_DECODE)}) {
        count_block("int4", op, TW_TYPE_FP32, elems, 1);
        count_block("int4", op, TW_TYPE_BF16, elems, 200);
    }
}

/* ---- messages ------------------------------------------------------------------------------------------ */

void count_messages(size_t elems)
{
    std::vector<Count> counted;
    const gpu::EntropyCall first = [&](const std::function<void()> &call) {
        clear_counts();
        call();
        counted.push_back(sum_of_counts());
        for (const auto &[name, c] : counts()) {
            fprintf(stderr, "%10.2f an element, %4llu launches, longest warp %8llu of %.0f: %s\n",
                    32.0 * (double)c.instructions / (double)elems, (unsigned long long)c.launches,
                    (unsigned long long)c.longest, (double)c.instructions / (double)c.warps, name.c_str());
        }
    };
    const std::vector<gpu::EntropyLine> lines = gpu::entropy_bench({2 * elems}, 0, first);
    for (size_t i = 0; i < lines.size(); i++) {
        const gpu::EntropyLine &line = lines[i];
        need(line.same, "a message is not the host's");
        clear_counts();
        count_launch(line.op) = counted[i];
        const bool is_delta = line.op.find("delta") != std::string::npos;
        const std::string codec = is_delta ? "delta" : line.op.substr(0, line.op.find(' '));
        write_line(
            {line.op.c_str(), codec.c_str(), "bf16", elems, line.message_bytes, 1, 1, line.moved_bytes});
    }
}

/* ---- attention ----------------------------------------------------------------------------------------- */

/* An element is a pair of tokens of which one sees the other, of one head. */
void count_attention(tw_type_t type, size_t tokens, size_t width)
{
    const size_t bytes = tokens * width * tw_type_bytes(type);
    const Memory q(bytes), k(bytes), v(bytes), y(bytes), dy(bytes), dq(bytes), dk(bytes), dv(bytes),
        lse(4 * tokens), workspace(4 * tokens);
    tw_cuda_attention_t a = {};
    a.type = type;
    a.batch = a.heads = a.kv_heads = 1;
    a.seq_len = tokens;
    a.width = a.q_stride = a.k_stride = a.v_stride = width;
    a.q = q.data;
    a.k = k.data;
    a.v = v.data;
    a.lse = (float *)lse.data;
    const tw_cuda_attention_gradients_t g = {y.data,
                                             dy.data,
                                             width,
                                             width,
                                             dq.data,
                                             dk.data,
                                             dv.data,
                                             width,
                                             width,
                                             width,
                                             (float *)workspace.data};
    const std::string name = "D=" + std::to_string(width);
    const size_t pairs = tokens * (tokens + 1) / 2;
    clear_counts();
    need(tw_cuda_attention_forward(&a, y.data, width, nullptr) == TW_OK, "attention failed");
    write_line({"attention forward", name.c_str(), tw_type_name(type), pairs, 0, 1, 1, 4.0 * (double)bytes});
    clear_counts();
    need(tw_cuda_attention_backward(&a, &g, nullptr) == TW_OK, "attention failed");
    write_line({"attention backward", name.c_str(), tw_type_name(type), pairs, 0, 1, 1, 8.0 * (double)bytes});
}

/* ---- collectives --------------------------------------------------------------------------------------- */

struct Collective {
    tw_coll_op_t op;
    std::string codec;
    std::vector<int> nodes;
    size_t elems;
};

/* All ranks share the machine: what one of them enqueues is the n-th part. */
void count_collective(const Collective &what)
{
    World world(what.nodes);
    const size_t n = what.nodes.size();
    std::vector<tw_coll_t *> colls(n);
    tw_quant_codec_t codec = {};
    const std::string &text = what.codec;
    need(text.empty() || tw_quant_codec_parse(text.c_str(), &codec) == TW_OK, "no codec");
    world.run([&](int rank) {
        tw_coll_params_t params = params_of(world.transport(rank));
        params.mem = TW_MEM_CUDA;
        need(tw_coll_create(&params, &colls[(size_t)rank]) == TW_OK, "no communicator");
    });
    clear_counts();
    world.run([&](int rank) {
        const Memory src(2 * what.elems), dst(2 * what.elems);
        tw_coll_segment_t segment = {};
        segment.src = src.data;
        segment.dst = dst.data;
        segment.n_elems = what.elems;
        tw_coll_args_t args = {};
        args.op = what.op;
        args.type = TW_TYPE_BF16;
        args.segments = &segment;
        args.n_segments = 1;
        args.factor = 1;
        args.codec = text.empty() ? nullptr : &codec;
        args.force_codec = 1;
        cudaStream_t stream = nullptr;
        need(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess, "no stream");
        args.stream = stream;
        need(tw_coll_run(colls[(size_t)rank], &args) == TW_OK, "the operation failed");
        (void)cudaStreamDestroy(stream);
    });
    const auto each = [n](const char *name) { return (double)call_counts()[name] / (double)n; };
    fprintf(out,
            "{\"table\": \"gpu_collective_counts\", \"op\": \"%s\", \"codec\": \"%s\", \"nodes\": %d, "
            "\"ranks\": %zu, \"bytes\": %zu, \"launches\": %.2f, \"copies\": %.2f, \"events\": %.2f}\n",
            tw_coll_op_name(what.op), text.empty() ? "plain" : text.c_str(), what.nodes.back() + 1, n,
            2 * what.elems, each("launches"), each("copies"), each("events"));
    fflush(out);
    for (tw_coll_t *coll : colls) {
        tw_coll_destroy(coll);
    }
}

void count_collectives(size_t elems)
{
    for (const std::vector<int> &nodes :
         {std::vector<int>{0, 1}, std::vector<int>{0, 1, 2, 3}, std::vector<int>{0, 0, 1, 1}}) {
        for (const char *codec : {"", "int8", "int4", "lossless"}) {
            for (tw_coll_op_t op : {TW_COLL_ALLGATHER, TW_COLL_REDUCE_SCATTER}) {
                count_collective({op, codec, nodes, elems});
            }
        }
    }
}

} // namespace

} // namespace tw::ptx

int main(int argc, char **argv)
{
    using namespace tw::ptx;
    const std::string parts = argc > 2 ? argv[2] : "blocks,messages,attention,collectives";
    const auto wanted = [&](const char *part) { return parts.find(part) != std::string::npos; };
    if (argc > 1) {
        out = fopen(argv[1], "a");
        need(out != nullptr, argv[1]);
    }
    settings().count = true;
    if (wanted("blocks")) {
        count_blocks(size_t{1} << 20);
    }
    if (wanted("messages")) {
        count_messages(size_t{1} << 20);
    }
    if (wanted("attention")) {
        for (size_t width : {64, 128}) {
            count_attention(TW_TYPE_BF16, 1024, width);
        }
        count_attention(TW_TYPE_FP32, 512, 64);
    }
    settings().count = false;
    if (wanted("collectives")) {
        count_collectives(size_t{2} << 20);
    }
    return 0;
}
