#include "tests/quant/cuda/staged.h"

#include <cuda_runtime_api.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "tests/quant/quant_data.h"

namespace
{

size_t take_every = 1;

#define TRY(call)                        \
    do {                                 \
        tw_status_t try_status = (call); \
        if (try_status != TW_OK)         \
            return try_status;           \
    } while (0)
#define CUDA_TRY(call) TRY(tw_quant_cuda_status(int(call), #call))

/* ---- buffers of one call ------------------------------------------------------------------------------- */

/* The call's buffers on the device, each in an allocation of its own: what is beyond belongs to nobody. Every
 * other stage has guards around them instead, which show what a GPU does not: a write a little too far. */
class Stage
{
  public:
    Stage() : guard_(stages++ % 2 ? 64 : 0)
    {
    }
    ~Stage()
    {
        for (const auto &[host, place] : places_) {
            cudaFree(place.memory);
        }
    }
    Stage(const Stage &) = delete;
    Stage &operator=(const Stage &) = delete;

    /* Place a buffer; the same one may come again. It is as far from a multiple of 64 as on the host. */
    void add(const void *host, size_t bytes, bool written)
    {
        if (host && !places_.count(host)) {
            places_[host] = {guard_ + reinterpret_cast<uintptr_t>(host) % 64, bytes, written, {}, nullptr};
        }
    }

    tw_status_t upload()
    {
        for (auto &[host, place] : places_) {
            place.image.assign(place.start + place.bytes + guard_, 0xa5);
            memcpy(place.image.data() + place.start, host, place.bytes);
            if (place.image.empty()) {
                place.image.push_back(0); /* a pointer to nothing is one, too */
            }
            CUDA_TRY(cudaMalloc(reinterpret_cast<void **>(&place.memory), place.image.size()));
            CUDA_TRY(
                cudaMemcpy(place.memory, place.image.data(), place.image.size(), cudaMemcpyHostToDevice));
        }
        return TW_OK;
    }

    template <class T>
    T *on_device(T *host) const
    {
        const auto found = places_.find(host);
        return found == places_.end() ? nullptr
                                      : reinterpret_cast<T *>(found->second.memory + found->second.start);
    }

    /* Results to where they belong; everything else must be what it was. */
    tw_status_t download()
    {
        CUDA_TRY(cudaDeviceSynchronize());
        for (const auto &[host, place] : places_) {
            std::vector<uint8_t> after(place.image.size());
            CUDA_TRY(cudaMemcpy(after.data(), place.memory, after.size(), cudaMemcpyDeviceToHost));
            if (place.written) {
                memcpy(const_cast<void *>(host), after.data() + place.start, place.bytes);
                memcpy(after.data() + place.start, place.image.data() + place.start, place.bytes);
            }
            if (after != place.image) {
                tw_error("a kernel wrote where it should not");
                return TW_ERR_INTERNAL;
            }
        }
        return TW_OK;
    }

  private:
    struct Place {
        size_t start, bytes;
        bool written;
        std::vector<uint8_t> image; /* what was uploaded, with what is around it */
        uint8_t *memory;
    };

    static inline size_t stages = 0;
    size_t guard_;
    std::map<const void *, Place> places_;
};

/* ---- contexts ------------------------------------------------------------------------------------------ */

/* Contexts on the GPU are kept: making one takes longer than most tests. */
struct Inner {
    tw_quant_t *quant;
    uint64_t counted; /* before the present user */
};

tw_quant_t *inner_of(const tw_quant_t *quant)
{
    return static_cast<Inner *>(quant->impl)->quant;
}

tw_status_t create(tw_quant_t *quant)
{
    static std::map<std::string, tw_quant_t *> contexts;
    const std::string text = tw::text_of(quant->codec);
    if (!contexts.count(text)) {
        const tw_quant_params_t params = {quant->codec, TW_MEM_CUDA, nullptr};
        TRY(tw_quant_create(&params, &contexts[text]));
    }
    tw_quant_t *context = contexts[text];
    quant->impl = new Inner{context, tw_quant_nonfinite_blocks(context)};
    return TW_OK;
}

void destroy(tw_quant_t *quant)
{
    delete static_cast<Inner *>(quant->impl);
}

uint64_t nonfinite_blocks(const tw_quant_t *quant)
{
    return tw_quant_nonfinite_blocks(inner_of(quant)) - static_cast<Inner *>(quant->impl)->counted;
}

int usable()
{
    return tw::staged::available();
}

/* ---- operations ---------------------------------------------------------------------------------------- */

using Operation = tw_status_t (*)(tw_quant_t *, const tw_quant_args_t *, const tw_quant_segment_t *, size_t);

/* Bytes of an element of src, base and dst; 0: encoded. */
struct Sides {
    size_t src, base, dst;
};

tw_status_t run(Operation operation, const Sides &sides, tw_quant_t *quant, const tw_quant_args_t *args,
                const tw_quant_segment_t *segments, size_t n_segments)
{
    Stage stage;
    std::vector<tw_quant_segment_t> staged(segments, segments + n_segments);
    auto bytes = [&](size_t element, size_t n) {
        return element ? element * n : tw_quant_encoded_bytes(&quant->codec, n);
    };
    for (const tw_quant_segment_t &s : staged) {
        stage.add(s.src, bytes(sides.src, s.n_elems), false);
        if (sides.base) {
            stage.add(s.base, bytes(sides.base, s.n_elems), false);
        }
        stage.add(s.dst, bytes(sides.dst, s.n_elems), true);
    }
    TRY(stage.upload());
    for (tw_quant_segment_t &s : staged) {
        s.src = stage.on_device(s.src);
        s.base = sides.base ? stage.on_device(s.base) : nullptr;
        s.dst = stage.on_device(s.dst);
    }
    TRY(operation(inner_of(quant), args, staged.data(), staged.size()));
    return stage.download();
}

tw_status_t run_encode(tw_quant_t *quant, const tw_quant_args_t *args, const tw_quant_segment_t *segments,
                       size_t n, int delta)
{
    const size_t bytes = tw_type_bytes(args->type);
    return delta ? run(tw_quant_encode_delta, {4, bytes, 0}, quant, args, segments, n)
                 : run(tw_quant_encode, {bytes, 0, 0}, quant, args, segments, n);
}

tw_status_t run_decode(tw_quant_t *quant, const tw_quant_args_t *args, const tw_quant_segment_t *segments,
                       size_t n, int apply)
{
    return run(apply ? tw_quant_decode_apply : tw_quant_decode, {0, 0, tw_type_bytes(args->type)}, quant,
               args, segments, n);
}

/* One block for all calls: each ends before the next begins. */
tw_status_t find_workspace(size_t bytes, tw_quant_args_t *args)
{
    static void *block = nullptr;
    static size_t size = 0;
    if (bytes > size) {
        CUDA_TRY(cudaFree(block));
        CUDA_TRY(cudaMalloc(&block, bytes));
        size = bytes;
    }
    args->workspace = block;
    args->workspace_bytes = bytes;
    return TW_OK;
}

tw_status_t run_reduce(tw_quant_t *in, tw_quant_t *out, const tw_quant_args_t *args,
                       const tw_quant_reduce_segment_t *segments, size_t n_segments)
{
    Stage stage;
    std::vector<tw_quant_reduce_segment_t> staged(segments, segments + n_segments);
    std::vector<std::vector<const void *>> srcs(n_segments);
    for (const tw_quant_reduce_segment_t &s : staged) {
        const size_t bytes =
            out ? tw_quant_encoded_bytes(&out->codec, s.n_elems) : s.n_elems * tw_type_bytes(args->type);
        for (size_t k = 0; k < s.n_srcs; k++) {
            stage.add(s.srcs[k], tw_quant_encoded_bytes(&in->codec, s.n_elems), false);
        }
        stage.add(s.dst, bytes, true);
    }
    TRY(stage.upload());
    for (size_t i = 0; i < n_segments; i++) {
        for (size_t k = 0; k < staged[i].n_srcs; k++) {
            srcs[i].push_back(stage.on_device(staged[i].srcs[k]));
        }
        staged[i].srcs = srcs[i].data();
        staged[i].dst = stage.on_device(staged[i].dst);
    }
    tw_quant_args_t with_workspace = *args;
    TRY(find_workspace(tw_quant_reduce_workspace_bytes(inner_of(in), staged.data(), n_segments),
                       &with_workspace));
    TRY(out ? tw_quant_reduce_encode(inner_of(in), inner_of(out), &with_workspace, staged.data(), n_segments)
            : tw_quant_reduce_decode(inner_of(in), &with_workspace, staged.data(), n_segments));
    return stage.download();
}

tw_status_t run_reduce_decode(tw_quant_t *in, const tw_quant_args_t *args,
                              const tw_quant_reduce_segment_t *segments, size_t n_segments)
{
    return run_reduce(in, nullptr, args, segments, n_segments);
}

tw_status_t run_adamw(tw_quant_t *quant, const tw_quant_args_t *args, const tw_quant_adamw_t *adamw,
                      const tw_quant_adamw_segment_t *segments, size_t n_segments)
{
    Stage stage;
    std::vector<tw_quant_adamw_segment_t> staged(segments, segments + n_segments);
    tw_quant_adamw_t on_device = *adamw;
    for (const tw_quant_adamw_segment_t &s : staged) {
        stage.add(s.grad, s.n_elems * tw_type_bytes(adamw->grad_type), false);
        for (float *state : {s.master, s.m, s.v}) {
            stage.add(state, s.n_elems * 4, true);
        }
        stage.add(s.replica, s.n_elems * tw_type_bytes(args->type), false);
        stage.add(s.dst, tw_quant_encoded_bytes(&quant->codec, s.n_elems), true);
    }
    stage.add(adamw->grad_scale, sizeof(float), false);
    TRY(stage.upload());
    for (tw_quant_adamw_segment_t &s : staged) {
        s.grad = stage.on_device(s.grad);
        s.master = stage.on_device(s.master);
        s.m = stage.on_device(s.m);
        s.v = stage.on_device(s.v);
        s.replica = stage.on_device(s.replica);
        s.dst = stage.on_device(s.dst);
    }
    on_device.grad_scale = stage.on_device(adamw->grad_scale);
    TRY(tw_quant_adamw_encode_delta(inner_of(quant), args, &on_device, staged.data(), n_segments));
    return stage.download();
}

} // namespace

namespace tw
{

const tw_quant_backend_t staged::backend = {
    "cuda_staged", TW_MEM_HOST,       usable,    create,  destroy, nonfinite_blocks, run_encode, run_decode,
    run_reduce,    run_reduce_decode, run_adamw, nullptr, nullptr,
};

bool staged::available()
{
    int n_devices = 0;
    if (cudaGetDeviceCount(&n_devices) == cudaSuccess) {
        return n_devices > 0;
    }
    cudaGetLastError();
    return false;
}

void staged::set_take_every(size_t n)
{
    take_every = n;
}

std::optional<std::vector<const tw_quant_backend_t *>> extra_backends()
{
    if (!staged::available()) {
        return std::vector<const tw_quant_backend_t *>();
    }
    return std::vector<const tw_quant_backend_t *>{&staged::backend};
}

size_t extra_backends_take_every()
{
    return take_every;
}

} // namespace tw
