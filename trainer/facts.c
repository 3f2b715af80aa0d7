/* Collects the settings and data of a run as lines, for ranks and checkpoints to compare. */
#include "trainer/facts.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define SCHEDULE_END "scheduler.params.total_num_steps"

tw_status_t tw_facts_of_data(const tw_data_t *data, tw_lines_t *lines)
{
    tw_data_fingerprint_t print;
    TW_TRY(tw_data_fingerprint_get(data, &print));
    tw_lines_add(lines, "data.train_tokens", "%" PRIu64, print.n_train);
    tw_lines_add(lines, "data.val_tokens", "%" PRIu64, print.n_val);
    tw_lines_add(lines, "data.vocab_size", "%" PRIu64, print.vocab_size);
    tw_lines_add(lines, "data.checksum", "%016" PRIx64, print.checksum);
    return TW_OK;
}

tw_status_t tw_facts_of_run(const tw_train_config_t *config, const tw_data_t *data, tw_lines_t *lines)
{
    tw_train_config_facts(config, lines);
    TW_TRY(tw_facts_of_data(data, lines));
    return lines->failed ? tw_fail(TW_ERR_NO_MEMORY, "out of memory for what a checkpoint keeps of a run")
                         : TW_OK;
}

/** Write the lines that differ. Returns their number. */
static size_t write_differences(const char *before, const char *now, FILE *out)
{
    tw_line_t line;
    size_t n = 0;
    while (tw_lines_next(&before, &line)) {
        char value[TW_LINES_VALUE_BYTES];
        if (tw_lines_find(now, line.name, value) && !tw_word_is(line.value, value)) {
            int stretches = strcmp(line.name, SCHEDULE_END) == 0;
            fprintf(out, "%s%s %s -> %s%s", n++ > 0 ? ", " : "", line.name, line.value, value,
                    stretches ? " (the learning rate's schedule is another: it ends there)" : "");
        }
    }
    return n;
}

void tw_facts_say_differences(const char *source, const char *before, const char *now)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    size_t n = out ? write_differences(before, now, out) : 0;
    if (!out || fclose(out) != 0) {
        tw_warn("%s: out of memory for what is other than when it was saved", source);
    } else if (n > 0) {
        tw_warn("%s: this run goes on with other than it was saved with: %s", source, text);
    }
    free(text);
}
