/* Compares lines of text between ranks: first a hash of them. Only if the hashes differ, all lines. */
#include "trainer/agreement.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#define MOST_NAMED 3 /* at most this many differing lines of a rank are logged */

tw_status_t tw_agree_gather(tw_coll_t *coll, const void *own, size_t n_bytes, void *all)
{
    tw_coll_segment_t segment = {.src = own, .dst = all, .n_elems = (size_t)tw_coll_size(coll) * n_bytes};
    tw_coll_args_t args = {
        .op = TW_COLL_ALLGATHER, .type = TW_TYPE_BYTE, .segments = &segment, .n_segments = 1};
    return tw_coll_run(coll, &args);
}

void *tw_agree_alloc(tw_coll_t *coll, size_t n_bytes)
{
    void *all = calloc((size_t)tw_coll_size(coll), n_bytes);
    if (!all) {
        tw_error("rank %d: out of memory for what %d ranks have to say", tw_coll_rank(coll),
                 tw_coll_size(coll));
        tw_coll_abort(coll);
    }
    return all;
}

/* ---- lines --------------------------------------------------------------------------------------------- */

static void name_line(int rank, const tw_line_t *line, const char *value)
{
    tw_error("rank %d: %s is '%s', on rank 0 it is '%s'", rank, line->name, value, line->value);
}

static void name_differences(int rank, const char *text, const char *first)
{
    tw_line_t line;
    int n = 0;
    for (const char *at = first; n < MOST_NAMED && tw_lines_next(&at, &line);) {
        char value[TW_LINES_VALUE_BYTES] = "";
        if (!tw_lines_find(text, line.name, value) || strcmp(value, line.value) != 0) {
            name_line(rank, &line, value);
            n++;
        }
    }
    if (n == 0) {
        tw_error("rank %d: it compares other things than rank 0: is it the same program?", rank);
    }
}

/** Gather the lines of all ranks, each rank's in a buffer of `most` bytes. Rank 0 logs the differences. */
static tw_status_t exchange_lines(tw_coll_t *coll, const tw_lines_t *lines, size_t most)
{
    char *all = tw_agree_alloc(coll, most), *own = all ? calloc(1, most) : NULL;
    tw_status_t status = own ? TW_OK : TW_ERR_NO_MEMORY;
    if (all && !own) {
        tw_error("rank %d: out of memory for %zu bytes of what it has to say", tw_coll_rank(coll), most);
        tw_coll_abort(coll);
    }
    if (status == TW_OK) {
        memcpy(own, lines->text ? lines->text : "", lines->bytes);
        status = tw_agree_gather(coll, own, most, all);
    }
    for (int rank = 1; status == TW_OK && tw_coll_rank(coll) == 0 && rank < tw_coll_size(coll); rank++) {
        const char *text = all + (size_t)rank * most;
        if (strcmp(text, all) != 0) {
            name_differences(rank, text, all);
        }
    }
    free(own);
    free(all);
    return status == TW_OK ? TW_ERR_MISMATCH : status;
}

typedef struct digest {
    uint64_t hash, bytes;
    int64_t failed;
} digest_t;

static tw_status_t agreement_compare(const digest_t *all, int world, size_t *most)
{
    tw_status_t status = TW_OK;
    *most = 1;
    for (int rank = 0; rank < world; rank++) {
        if (all[rank].failed) {
            return TW_ERR_NO_MEMORY;
        }
        if (all[rank].hash != all[0].hash) {
            status = TW_ERR_MISMATCH;
        }
        *most = all[rank].bytes + 1 > *most ? all[rank].bytes + 1 : *most;
    }
    return status;
}

tw_status_t tw_agree_on(tw_coll_t *coll, const tw_lines_t *lines)
{
    digest_t own = {.bytes = lines->bytes, .failed = lines->failed};
    own.hash = lines->bytes > 0 ? XXH3_64bits(lines->text, lines->bytes) : 0;
    digest_t *all = tw_agree_alloc(coll, sizeof(*all));
    size_t most = 1;
    tw_status_t status = all ? tw_agree_gather(coll, &own, sizeof(own), all) : TW_ERR_NO_MEMORY;
    status = status == TW_OK ? agreement_compare(all, tw_coll_size(coll), &most) : status;
    free(all);
    return status == TW_ERR_MISMATCH ? exchange_lines(coll, lines, most) : status;
}

/* ---- failures ------------------------------------------------------------------------------------------ */

tw_status_t tw_agree_status(tw_coll_t *coll, tw_status_t status)
{
    int64_t own = status, *all = tw_agree_alloc(coll, sizeof(*all));
    status = all ? tw_agree_gather(coll, &own, sizeof(own), all) : TW_ERR_NO_MEMORY;
    for (int rank = 0; rank < tw_coll_size(coll) && status == TW_OK; rank++) {
        status = (tw_status_t)all[rank];
    }
    free(all);
    return status;
}

/* Result of a rank's attempt. `errors` is a hash of the log messages that the rank holds back. */
typedef struct report {
    uint64_t errors;
    int64_t status;
} report_t;

/** Return the status of the first rank that failed. If rank 0 succeeded, it logs that rank's failure. */
static tw_status_t agreement_judge(const tw_attempt_t *attempt, const report_t *all)
{
    int world = tw_coll_size(attempt->coll), first = 0;
    while (first < world && all[first].status == TW_OK) {
        first++;
    }
    if (first == world) {
        return TW_OK;
    }
    if (first > 0 && tw_coll_rank(attempt->coll) == 0) {
        tw_error("rank 0: rank %d cannot %s, and says why itself: %s", first, attempt->what,
                 tw_status_string((tw_status_t)all[first].status));
    }
    return (tw_status_t)all[first].status;
}

void tw_attempt_begin(tw_attempt_t *attempt, tw_coll_t *coll, const char *what)
{
    *attempt = (tw_attempt_t){.coll = coll, .what = what};
    tw_log_keep_begin(&attempt->held);
}

tw_status_t tw_attempt_end(tw_attempt_t *attempt, tw_status_t status)
{
    tw_log_keep_end(&attempt->held);
    const report_t own = {.errors = tw_log_held_hash(&attempt->held), .status = status};
    int is_first = tw_coll_rank(attempt->coll) == 0;
    if (is_first) {
        tw_log_held_cleanup(&attempt->held, 1);
    }
    report_t *all = tw_agree_alloc(attempt->coll, sizeof(*all));
    tw_status_t met = all ? tw_agree_gather(attempt->coll, &own, sizeof(own), all) : TW_ERR_NO_MEMORY;
    int has_news = met != TW_OK || own.errors != all[0].errors;
    if (met == TW_OK) {
        met = agreement_judge(attempt, all);
    }
    free(all);
    if (!is_first) {
        tw_log_held_cleanup(&attempt->held, has_news);
    }
    return status != TW_OK ? status : met;
}
