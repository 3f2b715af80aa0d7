/* Expands a list of names and patterns to files, with their weights. */
#include "trainer/data/files.h"

#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void tw_data_names_cleanup(tw_data_names_t *names)
{
    for (size_t i = 0; i < names->n; i++) {
        free(names->at[i].path);
    }
    free(names->at);
    *names = (tw_data_names_t){0};
}

static tw_status_t files_add(tw_data_names_t *names, const char *path, size_t length, double weight)
{
    tw_data_name_t *longer = realloc(names->at, (names->n + 1) * sizeof(*longer));
    char *copy = strndup(path, length);
    names->at = longer ? longer : names->at;
    if (!longer || !copy) {
        tw_error("data: out of memory for the names of files");
        free(copy);
        return TW_ERR_NO_MEMORY;
    }
    names->at[names->n++] = (tw_data_name_t){.path = copy, .group = names->n_groups, .weight = weight};
    return TW_OK;
}

/** Add the files that match a pattern, in the order of their names' bytes. A name that is no pattern is added
 *  without checking that the file exists. */
static tw_status_t add_pattern(tw_data_names_t *names, const char *pattern, double weight)
{
    glob_t found;
    tw_status_t status = TW_OK;
    if (!strpbrk(pattern, "*?[") || access(pattern, F_OK) == 0) {
        return files_add(names, pattern, strlen(pattern), weight);
    }
    int code = glob(pattern, GLOB_ERR, NULL, &found);
    if (code != 0) {
        tw_error("data: %s: %s", pattern,
                 code == GLOB_NOMATCH ? "there is no such file" : "its folder cannot be read");
        return code == GLOB_NOSPACE ? TW_ERR_NO_MEMORY : TW_ERR_NOT_FOUND;
    }
    for (size_t i = 0; i < found.gl_pathc && status == TW_OK; i++) {
        status = files_add(names, found.gl_pathv[i], strlen(found.gl_pathv[i]), weight);
    }
    globfree(&found);
    return status;
}

/** Cut a weight such as ":0.3" off the end of an entry, and read it. *weight is 0 if there is none. */
static tw_status_t cut_weight(char *entry, double *weight)
{
    char *colon = strrchr(entry, ':'), *end = NULL;
    *weight = 0;
    if (!colon || access(entry, F_OK) == 0) {
        return TW_OK;
    }
    double value = strtod(colon + 1, &end);
    if (end == colon + 1 || *end) {
        return TW_OK; /* the colon is part of the name */
    }
    TW_FAIL_IF(!(value > 0 && value <= 1e6), TW_ERR_INVALID,
               "data: %s: a weight must be more than 0 and at most 1000000", entry);
    *colon = '\0';
    *weight = value;
    return TW_OK;
}

static tw_status_t add_entry(tw_data_names_t *names, char *entry)
{
    double weight;
    size_t before = names->n;
    entry += strspn(entry, " ");
    TW_TRY(cut_weight(entry, &weight));
    TW_FAIL_IF(!*entry, TW_ERR_INVALID, "data: a name between two commas is missing");
    TW_TRY(add_pattern(names, entry, weight));
    names->n_groups += names->n > before;
    return TW_OK;
}

/** Check that either all entries have weights or none has one. Without weights all files form one group. */
static tw_status_t settle_weights(tw_data_names_t *names)
{
    size_t n_weighted = 0;
    for (size_t i = 0; i < names->n; i++) {
        n_weighted += names->at[i].weight > 0;
    }
    TW_FAIL_IF(n_weighted > 0 && n_weighted < names->n, TW_ERR_INVALID,
               "data: some files have weights and others have none: %s", names->at[0].path);
    for (size_t i = 0; i < names->n && n_weighted == 0; i++) {
        names->at[i].group = 0;
    }
    names->n_groups = n_weighted > 0 ? names->n_groups : 1;
    return TW_OK;
}

tw_status_t tw_data_names(const char *text, tw_data_names_t *names)
{
    *names = (tw_data_names_t){0};
    char *copy = strdup(text), *rest = copy;
    tw_status_t status = copy ? TW_OK : TW_ERR_NO_MEMORY;
    /* a file with this very name, even if the name looks like a list */
    if (copy && (!*text || access(text, F_OK) == 0)) {
        status = files_add(names, text, strlen(text), 0);
    } else {
        for (char *entry; status == TW_OK && (entry = strsep(&rest, ","));) {
            status = add_entry(names, entry);
        }
    }
    free(copy);
    status = status == TW_OK ? settle_weights(names) : status;
    if (status != TW_OK) {
        tw_data_names_cleanup(names);
    }
    return status;
}
