#include "flags/flags.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cluster/cluster.h"
#include "core/core.h"

void tw_flags_parse(const struct argp *argp, int argc, char **argv, unsigned flags, void *options)
{
    argp_err_exit_status = 2;
    argp_parse(argp, argc, argv, flags, NULL, options);
    const char *folder = getenv("BUILD_WORKING_DIRECTORY");
    if (folder && chdir(folder) != 0) {
        tw_warn("%s: %s", folder, strerror(errno));
    }
}

int64_t tw_flag_int(struct argp_state *state, const char *flag, const char *text, int64_t min, int64_t max)
{
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || value < min || value > max) {
        argp_error(state, "--%s: '%s' is not a number from %" PRId64 " to %" PRId64, flag, text, min, max);
    }
    return value;
}

double tw_flag_number(struct argp_state *state, const char *flag, const char *text, double min, double max)
{
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || errno != 0 || !(value >= min && value <= max)) {
        argp_error(state, "--%s: '%s' is not a number from %g to %g", flag, text, min, max);
    }
    return value;
}

size_t tw_flag_bytes(struct argp_state *state, const char *flag, const char *text, size_t min, size_t max)
{
    size_t bytes = 0;
    char least[32], most[32];
    if (tw_parse_bytes(text, &bytes) != TW_OK || bytes < min || bytes > max) {
        argp_error(state, "--%s: '%s' is not a size from %s to %s", flag, text,
                   tw_format_bytes(min, least, sizeof(least)), tw_format_bytes(max, most, sizeof(most)));
    }
    return bytes;
}

/* 1M is a million. */
double tw_flag_count(struct argp_state *state, const char *flag, const char *text, double max)
{
    static const char units[] = "KMG";
    static const double sizes[] = {1e3, 1e6, 1e9};
    char *end;
    double number = strtod(text, &end);
    const char *unit = *end != '\0' ? strchr(units, *end) : NULL;
    if (unit) {
        number *= sizes[unit - units];
        end++;
    }
    if (end == text || *end != '\0' || !(number >= 1 && number <= max)) {
        argp_error(state, "--%s: '%s' is not a number such as 500K, 1M or 7.5G, up to %g", flag, text, max);
    }
    return number;
}

double tw_flag_link(struct argp_state *state, const char *flag, const char *text)
{
    double bps = 0;
    if (tw_cluster_parse_link(text, &bps) != TW_OK) {
        argp_error(state, "--%s: '%s' is not a rate from 1mbit on, such as 1gbit or 100mbit, or none", flag,
                   text);
    }
    return bps;
}

void tw_flag_list(struct argp_state *state, const char *list,
                  void (*add)(struct argp_state *state, void *options, const char *item))
{
    char item[128];
    for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        snprintf(item, sizeof(item), "%.*s", (int)strcspn(at, ","), at);
        add(state, state ? state->input : NULL, item);
    }
}
