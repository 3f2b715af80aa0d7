#include "bench/codecs/rig.h"

#include <stdlib.h>

#define ALIGN_BYTES ((size_t)256)

const char *cb_op_name(int op)
{
    static const char *const names[CB_OP_COUNT] = {
        "encode",       "decode",        "decode_add",    "encode_delta",
        "decode_apply", "reduce_encode", "reduce_decode", "adamw_encode_delta"};
    return names[op];
}

static int rig_reduces(int op)
{
    return op == CB_REDUCE_ENCODE || op == CB_REDUCE_DECODE;
}

int cb_op_takes(int op, const tw_quant_codec_t *codec)
{
    return tw_quant_row_get(codec->kind)->sums || !rig_reduces(op);
}

size_t cb_case_bytes(const cb_case_t *c)
{
    return c->n_elems * tw_type_bytes(c->type);
}

/* ---- buffers ------------------------------------------------------------------------------------------- */

static size_t rig_align(size_t bytes)
{
    return (bytes + ALIGN_BYTES - 1) & ~(ALIGN_BYTES - 1);
}

static size_t rig_take(cb_layout_t *at, size_t bytes, double passes)
{
    size_t offset = at->bytes;
    at->bytes += rig_align(bytes);
    at->moved += passes * (double)bytes;
    return offset;
}

static int rig_has_inputs(int op)
{
    return op != CB_ENCODE && op != CB_ENCODE_DELTA && op != CB_ADAMW;
}

static size_t rig_inputs(const cb_case_t *c)
{
    return rig_reduces(c->op) ? c->n_inputs : 1;
}

/** Lay out the buffers of an operation. Every operation has `plain`: its inputs are encoded from it. */
static cb_layout_t rig_layout(const cb_case_t *c)
{
    cb_layout_t at = {0};
    size_t plain = cb_case_bytes(c), fp32 = c->n_elems * 4;
    int op = c->op, adamw = op == CB_ADAMW;
    at.segment_elems = (c->n_elems + c->n_segments - 1) / c->n_segments;
    at.segment_in = tw_quant_encoded_bytes(&c->codec, at.segment_elems);
    at.segment_out = tw_quant_encoded_bytes(&c->out, at.segment_elems);
    at.input_stride = rig_align(at.segment_in * c->n_segments);
    at.plain = rig_take(&at, plain, op == CB_ENCODE || op == CB_ENCODE_DELTA || adamw ? 1 : 0);
    if (op == CB_DECODE || op == CB_DECODE_APPLY || op == CB_REDUCE_DECODE || adamw) {
        at.target = rig_take(&at, plain, op == CB_DECODE_APPLY ? 2 : 1);
    }
    if (op == CB_DECODE_ADD || op == CB_ENCODE_DELTA || adamw) {
        at.master = rig_take(&at, fp32, op == CB_ENCODE_DELTA ? 1 : 2);
    }
    if (adamw) {
        at.m = rig_take(&at, fp32, 2);
        at.v = rig_take(&at, fp32, 2);
    }
    if (rig_has_inputs(op)) {
        at.inputs = rig_take(&at, rig_inputs(c) * at.input_stride, 1);
    }
    if (op == CB_ENCODE || op == CB_ENCODE_DELTA || op == CB_REDUCE_ENCODE || adamw) {
        at.output = rig_take(&at, at.segment_out * c->n_segments, 1);
    }
    return at;
}

static size_t rig_elems(const cb_rig_t *rig, size_t segment)
{
    size_t first = segment * rig->at.segment_elems, left = rig->c->n_elems - first;
    return first >= rig->c->n_elems ? 0 : left < rig->at.segment_elems ? left : rig->at.segment_elems;
}

tw_status_t cb_rig_init(cb_rig_t *rig, const cb_case_t *c, const cb_memory_t *memory)
{
    size_t n = c->n_segments;
    tw_quant_params_t params = {.codec = c->codec, .mem = memory->mem, .backend = memory->backend};
    *rig = (cb_rig_t){.c = c, .memory = memory, .at = rig_layout(c)};
    TW_TRY(tw_quant_create(&params, &rig->in));
    params.codec = c->out;
    TW_TRY(tw_quant_create(&params, &rig->out));
    rig->segments = calloc(n, sizeof(*rig->segments));
    rig->reduce_segments = calloc(n, sizeof(*rig->reduce_segments));
    rig->adamw_segments = calloc(n, sizeof(*rig->adamw_segments));
    rig->srcs = calloc(n * c->n_inputs, sizeof(*rig->srcs));
    TW_FAIL_IF(!rig->segments || !rig->reduce_segments || !rig->adamw_segments || !rig->srcs,
               TW_ERR_NO_MEMORY, "bench: no memory for %zu segments", n);
    return TW_OK;
}

void cb_rig_cleanup(cb_rig_t *rig)
{
    tw_quant_destroy(rig->out);
    tw_quant_destroy(rig->in);
    free(rig->srcs);
    free(rig->adamw_segments);
    free(rig->reduce_segments);
    free(rig->segments);
}

static tw_status_t rig_encode_inputs(const cb_rig_t *rig, uint8_t *base)
{
    const cb_layout_t *at = &rig->at;
    tw_quant_args_t args = {.type = rig->c->type, .stream = rig->stream};
    for (size_t k = 0; k < rig_inputs(rig->c); k++) {
        for (size_t s = 0; s < rig->c->n_segments; s++) {
            size_t first = s * at->segment_elems;
            tw_quant_segment_t segment = {.src = base + at->plain + first * tw_type_bytes(rig->c->type),
                                          .dst =
                                              base + at->inputs + k * at->input_stride + s * at->segment_in,
                                          .n_elems = rig_elems(rig, s)};
            TW_TRY(tw_quant_encode(rig->in, &args, &segment, 1));
        }
    }
    return TW_OK;
}

static tw_status_t rig_fill_set(const cb_rig_t *rig, size_t set, const float *values, const void *plain)
{
    const cb_layout_t *at = &rig->at;
    uint8_t *base = rig->arena + set * at->bytes;
    size_t bytes = cb_case_bytes(rig->c);
    TW_TRY(rig->memory->copy(base + at->plain, plain, bytes));
    if (at->target) {
        TW_TRY(rig->memory->copy(base + at->target, plain, bytes));
    }
    if (at->master) {
        TW_TRY(rig->memory->copy(base + at->master, values, rig->c->n_elems * sizeof(*values)));
    }
    return rig_has_inputs(rig->c->op) ? rig_encode_inputs(rig, base) : TW_OK;
}

/** Make nearly normal values: sums of two uniform numbers, by a cheap generator because there are many. */
static void rig_make_values(float *values, size_t n)
{
    uint64_t state = 1;
    for (size_t i = 0; i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        values[i] = ((float)(state >> 48) + (float)(state >> 32 & 0xffff)) * 0x1p-15f - 2.0f;
    }
}

tw_status_t cb_rig_fill(const cb_rig_t *rig)
{
    size_t n = rig->c->n_elems;
    float *values = malloc(n * sizeof(*values));
    void *plain = malloc(n * sizeof(*values));
    tw_status_t status = values && plain ? TW_OK : TW_ERR_NO_MEMORY;
    if (status == TW_OK) {
        rig_make_values(values, n);
        tw_convert_from_fp32(rig->c->type, values, 1.0f, plain, n);
    } else {
        tw_error("bench: no memory for %zu elements", n);
    }
    for (size_t set = 0; status == TW_OK && set < rig->n_sets; set++) {
        status = rig_fill_set(rig, set, values, plain);
    }
    free(values);
    free(plain);
    return status;
}

/* ---- the operation ------------------------------------------------------------------------------------- */

static tw_status_t rig_adamw(cb_rig_t *rig, const tw_quant_args_t *args, uint8_t *base)
{
    const cb_layout_t *at = &rig->at;
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
            .n_elems = rig_elems(rig, s),
        };
    }
    return tw_quant_adamw_encode_delta(rig->out, args, &adamw, rig->adamw_segments, rig->c->n_segments);
}

static tw_status_t rig_reduce(cb_rig_t *rig, const tw_quant_args_t *args, uint8_t *base)
{
    const cb_layout_t *at = &rig->at;
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
                                        .dst = rig->c->op == CB_REDUCE_DECODE ? plain : encoded,
                                        .n_elems = rig_elems(rig, s)};
    }
    if (rig->c->op == CB_REDUCE_DECODE) {
        return tw_quant_reduce_decode(rig->in, args, rig->reduce_segments, n_segments);
    }
    return tw_quant_reduce_encode(rig->in, rig->out, args, rig->reduce_segments, n_segments);
}

static void rig_set_segments(cb_rig_t *rig, uint8_t *base)
{
    const cb_layout_t *at = &rig->at;
    size_t bytes = tw_type_bytes(rig->c->type);
    for (size_t s = 0; s < rig->c->n_segments; s++) {
        size_t first = s * at->segment_elems;
        uint8_t *input = base + at->inputs + s * at->segment_in,
                *output = base + at->output + s * at->segment_out;
        uint8_t *plain = base + at->plain + first * bytes, *target = base + at->target + first * bytes;
        uint8_t *master = base + at->master + first * 4;
        tw_quant_segment_t segment = {.n_elems = rig_elems(rig, s), .base = plain};
        segment.src = rig->c->op == CB_ENCODE ? plain : rig->c->op == CB_ENCODE_DELTA ? master : input;
        segment.dst = rig->c->op == CB_DECODE_ADD ? master : rig_has_inputs(rig->c->op) ? target : output;
        rig->segments[s] = segment;
    }
}

tw_status_t cb_rig_run(cb_rig_t *rig, size_t set)
{
    static tw_status_t (*const ops[])(tw_quant_t *, const tw_quant_args_t *, const tw_quant_segment_t *,
                                      size_t) = {
        [CB_ENCODE] = tw_quant_encode,
        [CB_DECODE] = tw_quant_decode,
        [CB_DECODE_ADD] = tw_quant_decode_add,
        [CB_ENCODE_DELTA] = tw_quant_encode_delta,
        [CB_DECODE_APPLY] = tw_quant_decode_apply,
    };
    const tw_quant_args_t args = {.type = rig->c->type,
                                  .seed = 1,
                                  .step = 1,
                                  .factor = 1.0f / (float)rig->c->n_inputs,
                                  .stream = rig->stream};
    uint8_t *base = rig->arena + set * rig->at.bytes;
    if (rig->c->op == CB_ADAMW) {
        return rig_adamw(rig, &args, base);
    }
    if (rig_reduces(rig->c->op)) {
        return rig_reduce(rig, &args, base);
    }
    rig_set_segments(rig, base);
    return ops[rig->c->op](rig_has_inputs(rig->c->op) ? rig->in : rig->out, &args, rig->segments,
                           rig->c->n_segments);
}
