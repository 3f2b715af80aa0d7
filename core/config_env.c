/* Finds environment variables whose names are unknown, and the known names nearest to them. */
#include "core/config_value.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PREFIX "TW_"
#define NAME_BYTES 128 /* a name of this length or more is near no other */

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

static int same_letter(char a, char b)
{
    return tolower((unsigned char)a) == tolower((unsigned char)b);
}

/** Returns the edit distance, ignoring case: the number of insertions, deletions, substitutions and swaps of
 *  neighbours (restricted Damerau-Levenshtein distance). Both names must be shorter than NAME_BYTES. */
static size_t edit_distance(const char *a, const char *b)
{
    size_t rows[3][NAME_BYTES + 1];
    size_t *before_last = rows[0], *last = rows[1], *row = rows[2];
    size_t n = strlen(b);
    for (size_t j = 0; j <= n; j++) {
        row[j] = j;
    }
    for (size_t i = 1; a[i - 1] != '\0'; i++) {
        size_t *reused = before_last;
        before_last = last;
        last = row;
        row = reused;
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            size_t substitute = last[j - 1] + !same_letter(a[i - 1], b[j - 1]);
            row[j] = min_size(substitute, 1 + min_size(last[j], row[j - 1]));
            if (i > 1 && j > 1 && same_letter(a[i - 1], b[j - 2]) && same_letter(a[i - 2], b[j - 1])) {
                row[j] = min_size(row[j], before_last[j - 2] + 1);
            }
        }
    }
    return row[n];
}

const char *tw_nearest_name(const char *name, const char *const *candidates, size_t n_candidates)
{
    /* A third of the letters may be wrong, plus one, so that a short name may have an error. */
    size_t limit = strlen(name) / 3 + 1;
    const char *nearest = NULL;
    if (strlen(name) >= NAME_BYTES) {
        return NULL;
    }
    for (size_t i = 0; i < n_candidates; i++) {
        if (strlen(candidates[i]) >= NAME_BYTES) {
            continue;
        }
        size_t distance = edit_distance(name, candidates[i]);
        if (distance < limit || (distance == limit && !nearest)) {
            limit = distance;
            nearest = candidates[i];
        }
    }
    return nearest;
}

static size_t count_fields(const tw_config_table_t *const *tables, size_t n_tables)
{
    size_t n = 0;
    for (size_t i = 0; i < n_tables; i++) {
        n += tables[i]->n_fields;
    }
    return n;
}

static int env_is_known(const char *name, const char *const *known, size_t n_known)
{
    for (size_t i = 0; i < n_known; i++) {
        if (strcmp(name, known[i]) == 0) {
            return 1;
        }
    }
    return 0;
}

/** Warn about the environment entry NAME=value if its name begins with PREFIX and is unknown; with only_near,
 *  only if it is also near a known one. Returns 1 if it has warned. */
static size_t check_entry(const char *entry, const char *const *known, size_t n_known, int only_near)
{
    char name[NAME_BYTES];
    size_t length = strcspn(entry, "=");
    if (strncmp(entry, PREFIX, strlen(PREFIX)) != 0) {
        return 0;
    }
    /* A longer name is cut. No known name is so long, so it stays unknown. */
    snprintf(name, sizeof(name), "%.*s", (int)min_size(length, sizeof(name)), entry);
    if (env_is_known(name, known, n_known)) {
        return 0;
    }
    const char *nearest = tw_nearest_name(name, known, n_known);
    if (nearest) {
        tw_warn("config: unknown variable %s; did you mean %s?", name, nearest);
    } else if (!only_near) {
        tw_warn("config: unknown variable %s", name);
    }
    return nearest || !only_near;
}

size_t tw_config_check_entries(const char *const *known, size_t n_known, int only_near)
{
    size_t n_unknown = 0;
    for (char **entry = environ; *entry; entry++) {
        n_unknown += check_entry(*entry, known, n_known, only_near);
    }
    return n_unknown;
}

size_t tw_config_check_environment(const tw_config_table_t *const *tables, size_t n_tables)
{
    size_t n_known = 0, n_unknown;
    const char **known = calloc(count_fields(tables, n_tables) + 1, sizeof(*known));
    TW_FAIL_IF(!known, 0, "config: out of memory");
    for (size_t i = 0; i < n_tables; i++) {
        for (size_t j = 0; j < tables[i]->n_fields; j++) {
            known[n_known++] = tables[i]->fields[j].name;
        }
    }
    n_unknown = tw_config_check_entries(known, n_known, 0);
    free(known);
    return n_unknown;
}
