/* Finds the ranks that the log names as failed. */
#include "tests/faults/state.h"

#include <stdlib.h>
#include <string.h>

static uint64_t bit(long rank)
{
    return rank >= 0 && rank < TW_FAULTS_MAX_RANKS ? (uint64_t)1 << rank : 0;
}

/** Parse "2, 4 and 5" into bits. */
static uint64_t parse_list(const char *text)
{
    uint64_t named = 0;
    while (*text != '\0') {
        char *end;
        long rank = strtol(text, &end, 10);
        named |= end != text ? bit(rank) : 0;
        text = end != text ? end : text + 1;
    }
    return named;
}

/** The lines are "rank 1: peer 3 failed: ...", "rank 3: this rank failed: ...", "rank 0: missing after 4 s:
 *  rank 3, 4" and, from a rank that never reached rank 0, "rank 1: could not join ...". */
uint64_t tw_fault_names_parse(const char *line)
{
    const char *missing = strstr(line, "missing after "), *peer = strstr(line, "peer ");
    if (missing && (missing = strstr(missing, ": rank "))) {
        return parse_list(missing + strlen(": rank "));
    }
    if (peer) {
        return bit(strtol(peer + strlen("peer "), NULL, 10));
    }
    if (!strncmp(line, "rank ", strlen("rank ")) && strstr(line, ": this rank failed")) {
        return bit(strtol(line + strlen("rank "), NULL, 10));
    }
    return strstr(line, "could not join") ? bit(0) : 0;
}

static void faults_hear(void *ctx, tw_log_level_t level, const char *file, int line, const char *message)
{
    static const char *const words[] = {"error", "warn", "info", "debug", "trace"};
    uint64_t *named = ctx;
    (void)file, (void)line;
    fprintf(stderr, "%.3f %s %s\n", tw_time_sec(), words[level], message);
    if (level == TW_LOG_ERROR && *named == 0) {
        *named = tw_fault_names_parse(message);
    }
}

void tw_fault_names_listen(uint64_t *named)
{
    tw_log_set_sink(faults_hear, named);
}
