/* Walks over the segments of a call: gives contiguous runs, and blocks, which may span segments. */
#include "quant/delta/walk.h"

#include <string.h>

tw_status_t tw_delta_check_call(const char *operation, const tw_quant_delta_segment_t *segments,
                                size_t n_segments, int encoding, size_t *n_elems, int *second)
{
    size_t n = 0, with_state = 0, not_empty = 0;
    for (size_t s = 0; s < n_segments; s++) {
        const tw_quant_delta_segment_t *segment = &segments[s];
        if (!segment->n_elems) {
            continue;
        }
        const void *values = encoding ? segment->src : segment->dst;
        TW_FAIL_IF(!segment->base || !values || segment->n_elems > TW_DELTA_ELEMS_MAX - n, TW_ERR_INVALID,
                   "quant: %s: segment %zu has a NULL pointer, or there are more than %zu elements",
                   operation, s, TW_DELTA_ELEMS_MAX);
        n += segment->n_elems;
        not_empty++;
        with_state += segment->state != NULL;
    }
    TW_FAIL_IF(with_state && with_state != not_empty, TW_ERR_INVALID,
               "quant: %s: %zu of %zu segments have a state: all or none must", operation, with_state,
               not_empty);
    *n_elems = n;
    *second = with_state > 0;
    return TW_OK;
}

tw_delta_run_t tw_delta_next_run(tw_delta_cursor_t *cursor, size_t n, int encoding)
{
    while (cursor->at == cursor->segment->n_elems) {
        cursor->segment++;
        cursor->at = 0;
    }
    const tw_quant_delta_segment_t *segment = cursor->segment;
    size_t left = segment->n_elems - cursor->at, at = cursor->at;
    tw_delta_run_t run = {
        .old_values = (const uint16_t *)segment->base + at,
        .new_values = (uint16_t *)(encoding ? (uintptr_t)segment->src : (uintptr_t)segment->dst) + at,
        .state = segment->state ? segment->state + at : NULL,
        .n = left < n ? left : n,
    };
    cursor->at += run.n;
    return run;
}

/** Copy a block that spans segments to the codec: old values, states, and if new_too new values. */
static void walk_gather(tw_quant_delta_t *delta, tw_delta_cursor_t cursor, size_t n, int new_too)
{
    for (size_t done = 0; done < n;) {
        tw_delta_run_t run = tw_delta_next_run(&cursor, n - done, new_too);
        memcpy(delta->old_values + done, run.old_values, 2 * run.n);
        if (new_too) {
            memcpy(delta->new_values + done, run.new_values, 2 * run.n);
        }
        if (run.state) {
            memcpy(delta->state + done, run.state, run.n);
        }
        done += run.n;
    }
}

void tw_delta_scatter(const tw_quant_delta_t *delta, tw_delta_cursor_t cursor, size_t n, int new_too)
{
    for (size_t done = 0; done < n;) {
        tw_delta_run_t run = tw_delta_next_run(&cursor, n - done, !new_too);
        if (new_too) {
            memcpy(run.new_values, delta->new_values + done, 2 * run.n);
        }
        if (run.state) {
            memcpy(run.state, delta->state + done, run.n);
        }
        done += run.n;
    }
}

tw_delta_run_t tw_delta_next_block(tw_quant_delta_t *delta, tw_delta_cursor_t *cursor, size_t n, int encoding,
                                   int *gathered)
{
    tw_delta_cursor_t start = *cursor;
    tw_delta_run_t run = tw_delta_next_run(cursor, n, encoding);
    *gathered = run.n < n;
    if (*gathered) {
        walk_gather(delta, start, n, encoding);
        for (size_t done = run.n; done < n;) {
            done += tw_delta_next_run(cursor, n - done, encoding).n;
        }
        run = (tw_delta_run_t){delta->old_values, delta->new_values, run.state ? delta->state : NULL, n};
    }
    return run;
}

uint32_t tw_delta_check_values(const void *values, size_t first, size_t n)
{
    uint32_t check = 0;
    for (size_t i = 0; i < n; i++) {
        uint16_t bits;
        memcpy(&bits, (const uint8_t *)values + 2 * i, sizeof(bits));
        check += tw_entropy_check(first + i, bits);
    }
    return check;
}
