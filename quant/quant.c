/* Block codecs: creates contexts, checks the arguments of calls, and hands them to a backend. */
#include "quant/backend.h"

#include <stdlib.h>

static const tw_backend_t *const backends[] = {
#ifdef __x86_64__
    &tw_quant_backend_avx512bf16.is, &tw_quant_backend_avx512.is, &tw_quant_backend_avx2.is,
#elif defined(__aarch64__)
    &tw_quant_backend_neon.is,
#endif
    &tw_quant_backend_ref.is,
#ifdef TW_HAVE_CUDA
    &tw_quant_backend_cuda.is,
#endif
};
static const tw_backends_t of_blocks = {"blocks", backends, sizeof(backends) / sizeof(backends[0])};

size_t tw_quant_backends(tw_mem_t mem, const char **names, size_t max)
{
    return tw_backends_names(&of_blocks, mem, names, max);
}

tw_status_t tw_quant_create(const tw_quant_params_t *params, tw_quant_t **out)
{
    tw_status_t status = tw_quant_codec_check(&params->codec);
    if (status == TW_OK && tw_quant_form(&params->codec) != TW_QUANT_BLOCKS) {
        tw_error("quant: codec %s has no blocks of one size", tw_quant_row_get(params->codec.kind)->name);
        status = TW_ERR_INVALID;
    }
    if (status != TW_OK) {
        return status;
    }
    const tw_backend_t *found = tw_backends_find(&of_blocks, params->mem, params->backend);
    if (!found) {
        return TW_ERR_UNSUPPORTED;
    }
    const tw_quant_backend_t *backend = (const tw_quant_backend_t *)(const void *)found;
    tw_quant_t *quant = calloc(1, sizeof(*quant));
    TW_FAIL_IF(!quant, TW_ERR_NO_MEMORY, "quant: out of memory");
    quant->codec = params->codec;
    quant->backend = backend;
    if (backend->create) {
        status = backend->create(quant);
        if (status != TW_OK) {
            goto err_free;
        }
    }
    *out = quant;
    return TW_OK;

err_free:
    free(quant);
    return status;
}

void tw_quant_destroy(tw_quant_t *quant)
{
    if (!quant) {
        return;
    }
    if (quant->backend->destroy) {
        quant->backend->destroy(quant);
    }
    free(quant);
}

const tw_quant_codec_t *tw_quant_codec_get(const tw_quant_t *quant)
{
    return &quant->codec;
}

const char *tw_quant_backend_name(const tw_quant_t *quant)
{
    return quant->backend->is.name;
}

uint64_t tw_quant_nonfinite_blocks(const tw_quant_t *quant)
{
    uint64_t elsewhere = quant->backend->nonfinite_blocks ? quant->backend->nonfinite_blocks(quant) : 0;
    return elsewhere + __atomic_load_n(&quant->nonfinite_blocks, __ATOMIC_RELAXED);
}

/* ---- checks -------------------------------------------------------------------------------------------- */

static tw_status_t check_type(const char *operation, tw_type_t type)
{
    if (type == TW_TYPE_FP32 || type == TW_TYPE_BF16 || type == TW_TYPE_FP16) {
        return TW_OK;
    }
    return tw_fail(TW_ERR_INVALID, "quant: %s: type %d (%s) can not be quantized", operation, (int)type,
                   tw_type_name(type));
}

static tw_status_t fail_null(const char *operation, size_t segment)
{
    return tw_fail(TW_ERR_INVALID, "quant: %s: segment %zu has a NULL pointer", operation, segment);
}

static tw_status_t check_elems(const char *operation, size_t segment, size_t n_elems)
{
    if (n_elems <= TW_MEMORY_BYTES_MAX) {
        return TW_OK;
    }
    return tw_fail(TW_ERR_INVALID, "quant: %s: segment %zu has %zu elements, more than fit in memory",
                   operation, segment, n_elems);
}

static tw_status_t check_segments(const char *operation, const tw_quant_segment_t *segments,
                                  size_t n_segments, int needs_base)
{
    for (size_t s = 0; s < n_segments; s++) {
        const tw_quant_segment_t *segment = &segments[s];
        TW_TRY(check_elems(operation, s, segment->n_elems));
        if (segment->n_elems && (!segment->src || !segment->dst || (needs_base && !segment->base))) {
            return fail_null(operation, s);
        }
    }
    return TW_OK;
}

static tw_status_t check_sums(const char *operation, const tw_quant_t *quant)
{
    const tw_quant_row_t *row = tw_quant_row_get(quant->codec.kind);
    TW_FAIL_IF(!row->sums, TW_ERR_UNSUPPORTED, "quant: %s: %s does not sum: it is for changes of weights",
               operation, row->name);
    return TW_OK;
}

static tw_status_t check_reduce(const char *operation, const tw_quant_args_t *args,
                                const tw_quant_reduce_segment_t *segments, size_t n_segments)
{
    TW_FAIL_IF(!(args->factor - args->factor == 0.0f), TW_ERR_INVALID,
               "quant: %s: factor is %g, must be finite", operation, (double)args->factor);
    for (size_t s = 0; s < n_segments; s++) {
        const tw_quant_reduce_segment_t *segment = &segments[s];
        TW_TRY(check_elems(operation, s, segment->n_elems));
        if (!segment->n_elems) {
            continue;
        }
        TW_FAIL_IF(!segment->n_srcs, TW_ERR_INVALID, "quant: %s: segment %zu has no inputs", operation, s);
        if (!segment->dst || !segment->srcs) {
            return fail_null(operation, s);
        }
        for (size_t k = 0; k < segment->n_srcs; k++) {
            if (!segment->srcs[k]) {
                return fail_null(operation, s);
            }
        }
    }
    return TW_OK;
}

static int in_range(double x, double low, double high)
{
    return x >= low && x < high;
}

static tw_status_t check_adamw(const tw_quant_t *quant, const tw_quant_args_t *args,
                               const tw_quant_adamw_t *adamw, const tw_quant_adamw_segment_t *segments,
                               size_t n_segments)
{
    TW_TRY(check_type("adamw_encode_delta", args->type));
    TW_TRY(check_type("adamw_encode_delta", adamw->grad_type));
    TW_FAIL_IF(!in_range(adamw->beta1, 0.0, 1.0) || !in_range(adamw->beta2, 0.0, 1.0) ||
                   !in_range(adamw->lr, 0.0, 1e30) || !in_range(adamw->eps, 0.0, 1e30) ||
                   !in_range(adamw->weight_decay, 0.0, 1e30) || adamw->step == 0,
               TW_ERR_INVALID,
               "quant: adamw_encode_delta: lr %g, betas %g and %g, eps %g, weight decay %g, step %llu: out "
               "of range",
               adamw->lr, adamw->beta1, adamw->beta2, adamw->eps, adamw->weight_decay,
               (unsigned long long)adamw->step);
    for (size_t s = 0; s < n_segments; s++) {
        const tw_quant_adamw_segment_t *g = &segments[s];
        TW_TRY(check_elems("adamw_encode_delta", s, g->n_elems));
        int encodes = g->dst || quant->backend->is.mem != TW_MEM_HOST;
        int has_state = g->grad && g->master && g->m && g->v;
        if (g->n_elems && (!has_state || (encodes && (!g->replica || !g->dst)))) {
            return fail_null("adamw_encode_delta", s);
        }
    }
    return TW_OK;
}

/* ---- operations ---------------------------------------------------------------------------------------- */

static tw_status_t quant_encode(const char *operation, tw_quant_t *quant, const tw_quant_args_t *args,
                                const tw_quant_segment_t *segments, size_t n_segments, int delta)
{
    TW_TRY(check_type(operation, args->type));
    TW_TRY(check_segments(operation, segments, n_segments, delta));
    return quant->backend->encode(quant, args, segments, n_segments, delta);
}

static tw_status_t quant_decode(const char *operation, tw_quant_t *quant, const tw_quant_args_t *args,
                                const tw_quant_segment_t *segments, size_t n_segments, int apply)
{
    TW_TRY(check_type(operation, args->type));
    TW_TRY(check_segments(operation, segments, n_segments, 0));
    return quant->backend->decode(quant, args, segments, n_segments, apply);
}

tw_status_t tw_quant_encode(tw_quant_t *quant, const tw_quant_args_t *args,
                            const tw_quant_segment_t *segments, size_t n_segments)
{
    return quant_encode("encode", quant, args, segments, n_segments, 0);
}

tw_status_t tw_quant_encode_delta(tw_quant_t *quant, const tw_quant_args_t *args,
                                  const tw_quant_segment_t *segments, size_t n_segments)
{
    return quant_encode("encode_delta", quant, args, segments, n_segments, 1);
}

tw_status_t tw_quant_decode(tw_quant_t *quant, const tw_quant_args_t *args,
                            const tw_quant_segment_t *segments, size_t n_segments)
{
    return quant_decode("decode", quant, args, segments, n_segments, 0);
}

tw_status_t tw_quant_decode_apply(tw_quant_t *quant, const tw_quant_args_t *args,
                                  const tw_quant_segment_t *segments, size_t n_segments)
{
    return quant_decode("decode_apply", quant, args, segments, n_segments, 1);
}

/** Adding to fp32 is tw_quant_decode_apply with the type fp32. */
tw_status_t tw_quant_decode_add(tw_quant_t *quant, const tw_quant_args_t *args,
                                const tw_quant_segment_t *segments, size_t n_segments)
{
    tw_quant_args_t fp32 = *args;
    fp32.type = TW_TYPE_FP32;
    return quant_decode("decode_add", quant, &fp32, segments, n_segments, 1);
}

size_t tw_quant_reduce_workspace_bytes(const tw_quant_t *quant, const tw_quant_reduce_segment_t *segments,
                                       size_t n_segments)
{
    if (!quant->backend->reduce_workspace_bytes) {
        return 0;
    }
    return quant->backend->reduce_workspace_bytes(segments, n_segments);
}

tw_status_t tw_quant_reduce_encode(tw_quant_t *in_quant, tw_quant_t *out_quant, const tw_quant_args_t *args,
                                   const tw_quant_reduce_segment_t *segments, size_t n_segments)
{
    TW_FAIL_IF(in_quant->backend->is.mem != out_quant->backend->is.mem, TW_ERR_INVALID,
               "quant: reduce_encode: input and output codec live in different memory");
    TW_TRY(check_sums("reduce_encode", in_quant));
    TW_TRY(check_sums("reduce_encode", out_quant));
    TW_TRY(check_reduce("reduce_encode", args, segments, n_segments));
    return in_quant->backend->reduce_encode(in_quant, out_quant, args, segments, n_segments);
}

tw_status_t tw_quant_reduce_decode(tw_quant_t *quant, const tw_quant_args_t *args,
                                   const tw_quant_reduce_segment_t *segments, size_t n_segments)
{
    TW_TRY(check_type("reduce_decode", args->type));
    TW_TRY(check_sums("reduce_decode", quant));
    TW_TRY(check_reduce("reduce_decode", args, segments, n_segments));
    return quant->backend->reduce_decode(quant, args, segments, n_segments);
}

tw_status_t tw_quant_adamw_encode_delta(tw_quant_t *quant, const tw_quant_args_t *args,
                                        const tw_quant_adamw_t *adamw,
                                        const tw_quant_adamw_segment_t *segments, size_t n_segments)
{
    TW_TRY(check_adamw(quant, args, adamw, segments, n_segments));
    return quant->backend->adamw_encode_delta(quant, args, adamw, segments, n_segments);
}
