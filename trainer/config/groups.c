/* Parses thinwire.groups, which sets how some tensors are trained: "PATTERN WORD ..., PATTERN WORD ...". */
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/config/config.h"

#define MOST_BYTES 4096

static tw_status_t wrong(const char *what, const char *entry)
{
    return tw_fail(TW_ERR_CONFIG, "thinwire.groups: %s: %s", what, entry);
}

/** Read the number of a word such as "lr=0.1". It must be 0 to `most`. */
static tw_status_t groups_take_number(const char *text, double most, const char *entry, double *value)
{
    char *end;
    *value = strtod(text, &end);
    return end > text && !*end && *value >= 0 && *value <= most ? TW_OK : wrong("not a number for it", entry);
}

static tw_status_t take_word(const char *word, tw_train_group_t *group)
{
    if (strcmp(word, "frozen") == 0) {
        group->is_frozen = 1;
        return TW_OK;
    }
    if (strncmp(word, "lr=", 3) == 0) {
        return groups_take_number(word + 3, 1e6, word, &group->lr);
    }
    if (strncmp(word, "decay=", 6) == 0) {
        return groups_take_number(word + 6, 1, word, &group->decay);
    }
    return wrong("expected frozen, lr=FACTOR or decay=NUMBER", word);
}

/** Read one entry. It is cut into words in place. */
static tw_status_t read_entry(char *entry, const char **pattern, tw_train_group_t *group)
{
    char *rest = NULL;
    *group = (tw_train_group_t){.lr = 1, .decay = -1};
    *pattern = strtok_r(entry, " ", &rest);
    char *word = *pattern ? strtok_r(NULL, " ", &rest) : NULL;
    if (!word) {
        return wrong("expected a tensor's name, or a pattern, and what is other with it",
                     *pattern ? *pattern : "''");
    }
    for (; word; word = strtok_r(NULL, " ", &rest)) {
        TW_TRY(take_word(word, group));
    }
    return TW_OK;
}

static tw_status_t copy_text(const char *text, char copy[MOST_BYTES])
{
    return (size_t)snprintf(copy, MOST_BYTES, "%s", text) < MOST_BYTES ? TW_OK : wrong("too long", "");
}

tw_status_t tw_train_group_of(const char *groups, const char *tensor, tw_train_group_t *group)
{
    char copy[MOST_BYTES], *rest = copy;
    tw_train_group_t found;
    const char *pattern;
    *group = (tw_train_group_t){.lr = 1, .decay = -1};
    TW_TRY(copy_text(groups, copy));
    for (char *entry; *groups && (entry = strsep(&rest, ","));) {
        TW_TRY(read_entry(entry, &pattern, &found));
        if (fnmatch(pattern, tensor, 0) == 0) {
            *group = found;
            return TW_OK;
        }
    }
    return TW_OK;
}

tw_status_t tw_train_groups_check(const char *groups, const char *const *tensors, size_t n_tensors)
{
    char copy[MOST_BYTES], *rest = copy;
    tw_train_group_t group;
    const char *pattern;
    TW_TRY(copy_text(groups, copy));
    for (char *entry; *groups && (entry = strsep(&rest, ","));) {
        size_t t = 0;
        TW_TRY(read_entry(entry, &pattern, &group));
        while (t < n_tensors && fnmatch(pattern, tensors[t], 0) != 0) {
            t++;
        }
        if (t == n_tensors) {
            return wrong("no tensor of the model has this name", pattern);
        }
    }
    return TW_OK;
}
