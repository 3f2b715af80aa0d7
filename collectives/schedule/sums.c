#include "collectives/schedule/schedule.h"

#include <math.h>
#include <string.h>

#include "quant/quant.h"

/* elements of the fp32 sum on the stack; few, so that they stay in the first-level cache */
#define SUM_ELEMS 2048

/* ---- copy ---------------------------------------------------------------------------------------------- */

typedef struct copy_args {
    tw_span_t from, to;
} copy_args_t;

static size_t span_unit(const tw_span_t *span)
{
    return span->view ? span->view->elem_bytes : 1;
}

/** Move the start of a span forward by `bytes`. */
static void span_skip(tw_span_t *span, size_t bytes)
{
    span->first += bytes / span_unit(span);
    span->n -= bytes / span_unit(span);
}

static tw_status_t run_copy(tw_sched_t *sched, const void *arg)
{
    tw_span_t from = ((const copy_args_t *)arg)->from, to = ((const copy_args_t *)arg)->to;
    while (from.n > 0) {
        size_t n_from, n_to;
        const char *src = tw_sched_at(sched, from, &n_from);
        char *dst = tw_sched_at(sched, to, &n_to);
        if (!src || !dst) {
            return TW_ERR_NO_MEMORY;
        }
        n_from *= span_unit(&from);
        n_to *= span_unit(&to);
        size_t bytes = n_from < n_to ? n_from : n_to;
        if (src != dst) {
            memcpy(dst, src, bytes);
        }
        span_skip(&from, bytes);
        span_skip(&to, bytes);
    }
    return TW_OK;
}

/** Emit a computation, and declare that it uses the buffers of the spans. */
static tw_task_t emit(tw_sched_t *sched, tw_compute_fn_t fn, const void *arg, const tw_span_t *spans,
                      size_t n_spans, tw_span_t to)
{
    tw_task_t task = tw_sched_compute(sched, fn, arg);
    for (size_t i = 0; i < n_spans; i++) {
        tw_sched_use(sched, task, spans[i].buffer);
    }
    tw_sched_use(sched, task, to.buffer);
    return task;
}

tw_task_t tw_work_copy(tw_sched_t *sched, tw_span_t from, tw_span_t to)
{
    copy_args_t *args = from.n > 0 ? tw_sched_alloc(sched, sizeof(*args)) : NULL;
    if (!args) {
        return TW_TASK_NONE;
    }
    *args = (copy_args_t){from, to};
    return emit(sched, run_copy, args, &from, 1, to);
}

/* ---- sum ----------------------------------------------------------------------------------------------- */

/** Compute dst = round(factor * acc), with finite values clipped to `limit`. Overwrites acc [n]. */
static void sum_round(tw_type_t type, float *acc, size_t n, float factor, float limit, void *dst)
{
    int is_limited = isfinite(limit);
    for (size_t i = 0; is_limited && i < n; i++) {
        float x = acc[i] * factor;
        acc[i] = isfinite(x) && fabsf(x) > limit ? copysignf(limit, x) : x;
    }
    tw_convert_from_fp32(type, acc, is_limited ? 1.0f : factor, dst, n);
}

typedef struct sum_args {
    tw_type_t type;
    size_t n_inputs, n_partial, n_elems, elem_bytes;
    float scale, factor, limit;
    tw_span_t to;
    tw_span_t inputs[];
} sum_args_t;

/** Returns the address of element `elem` of a span. *n: how many of the next *n elements are contiguous. */
static char *elem_at(tw_sched_t *sched, const sum_args_t *args, tw_span_t span, size_t elem, size_t *n)
{
    size_t contiguous, unit = span.view ? 1 : args->elem_bytes;
    span.first += elem * unit;
    span.n = *n * unit;
    char *at = tw_sched_at(sched, span, &contiguous);
    *n = contiguous / unit;
    return at;
}

/** Store n elements of an input in acc (is_first), or add them to acc. */
static tw_status_t sum_input(tw_sched_t *sched, const sum_args_t *args, size_t input, int is_first,
                             size_t elem, size_t n, float *acc)
{
    while (n > 0) {
        size_t run = n;
        const char *src = elem_at(sched, args, args->inputs[input], elem, &run);
        if (!src) {
            return TW_ERR_NO_MEMORY;
        }
        if (is_first) {
            tw_convert_to_fp32(args->type, src, acc, run);
        } else {
            tw_convert_add_fp32(args->type, src, acc, run);
        }
        acc += run;
        elem += run;
        n -= run;
    }
    return TW_OK;
}

static tw_status_t sum_output(tw_sched_t *sched, const sum_args_t *args, size_t elem, size_t n, float *acc)
{
    while (n > 0) {
        size_t run = n;
        char *dst = elem_at(sched, args, args->to, elem, &run);
        if (!dst) {
            return TW_ERR_NO_MEMORY;
        }
        sum_round(args->type, acc, run, args->factor, args->limit, dst);
        acc += run;
        elem += run;
        n -= run;
    }
    return TW_OK;
}

/** Compute acc = the sum of n elements. With a scale, partial inputs come last: they are scaled already. */
static tw_status_t sched_sum_inputs(tw_sched_t *sched, const sum_args_t *args, size_t elem, size_t n,
                                    float *acc)
{
    size_t first = args->scale != 1.0f ? args->n_partial : 0;
    for (size_t input = first; input < args->n_inputs; input++) {
        TW_TRY(sum_input(sched, args, input, input == first, elem, n, acc));
    }
    for (size_t i = 0; i < n && args->scale != 1.0f; i++) {
        acc[i] *= args->scale;
    }
    for (size_t input = 0; input < first; input++) {
        TW_TRY(sum_input(sched, args, input, 0, elem, n, acc));
    }
    return TW_OK;
}

static tw_status_t run_sum(tw_sched_t *sched, const void *arg)
{
    const sum_args_t *args = arg;
    float acc[SUM_ELEMS];
    for (size_t elem = 0; elem < args->n_elems; elem += SUM_ELEMS) {
        size_t n = args->n_elems - elem < SUM_ELEMS ? args->n_elems - elem : SUM_ELEMS;
        TW_TRY(sched_sum_inputs(sched, args, elem, n, acc));
        TW_TRY(sum_output(sched, args, elem, n, acc));
    }
    return TW_OK;
}

/** Sum up two inputs in one pass. This frequent case gives the same bits as run_sum. */
static tw_status_t run_sum_of_two(tw_sched_t *sched, const void *arg)
{
    const sum_args_t *args = arg;
    for (size_t elem = 0; elem < args->n_elems;) {
        size_t n = args->n_elems - elem;
        const char *a = elem_at(sched, args, args->inputs[0], elem, &n);
        const char *b = elem_at(sched, args, args->inputs[1], elem, &n);
        char *dst = elem_at(sched, args, args->to, elem, &n);
        if (!a || !b || !dst) {
            return TW_ERR_NO_MEMORY;
        }
        tw_convert_add(args->type, a, b, dst, n);
        elem += n;
    }
    return TW_OK;
}

tw_task_t tw_work_reduce(tw_sched_t *sched, const tw_work_sum_t *sum)
{
    size_t inputs_bytes = sum->n_inputs * sizeof(*sum->inputs);
    size_t elem_bytes = tw_type_bytes(sum->type);
    int is_plain = sum->factor == 1.0f && (sum->scale == 1.0f || sum->n_partial == sum->n_inputs);

    if (sum->n_inputs == 1 && is_plain) {
        return tw_work_copy(sched, sum->inputs[0], sum->to);
    }
    if (sum->to.n == 0) {
        return TW_TASK_NONE;
    }
    sum_args_t *args = tw_sched_alloc(sched, sizeof(*args) + inputs_bytes);
    if (!args) {
        return TW_TASK_NONE;
    }
    args->type = sum->type;
    args->n_inputs = sum->n_inputs;
    args->n_partial = sum->n_partial;
    int at_once = sum->n_partial == 0; /* multiply only once, like plain sums of quantized operations */
    args->scale = at_once ? 1.0f : sum->scale;
    args->elem_bytes = elem_bytes;
    args->n_elems = sum->to.n / (sum->to.view ? 1 : elem_bytes);
    args->factor = at_once ? sum->scale * sum->factor : sum->factor;
    args->limit = sum->limit;
    args->to = sum->to;
    memcpy(args->inputs, sum->inputs, inputs_bytes);
    int is_pair = sum->n_inputs == 2 && is_plain && !isfinite(sum->limit);
    return emit(sched, is_pair ? run_sum_of_two : run_sum, args, sum->inputs, sum->n_inputs, sum->to);
}
