/* A trained model as transformers opens it: weights, shape, and the files of its tokenizer. */
#include "trainer/export.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "trainer/checkpoint/checkpoint.h"

#define PATH_BYTES 4096

static tw_status_t failed(const char *path)
{
    int error = errno;
    tw_error("%s: cannot write it: %s", path, strerror(error));
    return tw_status_from_errno(error);
}

static int copy_bytes(FILE *in, FILE *out)
{
    char buffer[1 << 16];
    size_t n;
    while ((n = fread(buffer, 1, sizeof(buffer), in)) > 0) {
        if (fwrite(buffer, 1, n, out) != n) {
            return -1;
        }
    }
    return ferror(in) ? -1 : 0;
}

/** As a whole or not at all. */
static tw_status_t write_copy(FILE *in, const char *to)
{
    char temporary[PATH_BYTES + 8];
    snprintf(temporary, sizeof(temporary), "%s.tmp", to);
    FILE *out = fopen(temporary, "we");
    if (!out) {
        return failed(temporary);
    }
    int wrong = copy_bytes(in, out) != 0 || fflush(out) != 0 || fsync(fileno(out)) != 0;
    if (fclose(out) != 0 || wrong || rename(temporary, to) != 0) {
        tw_status_t status = failed(to);
        (void)unlink(temporary);
        return status;
    }
    return TW_OK;
}

/** from: what is not there is not copied. */
static tw_status_t copy_file(const char *from, const char *folder, const char *name)
{
    char to[PATH_BYTES];
    FILE *in = *from ? fopen(from, "re") : NULL;
    if (!in) {
        return TW_OK;
    }
    int length = snprintf(to, sizeof(to), "%s/%s", folder, name);
    tw_status_t status = length < (int)sizeof(to) ? write_copy(in, to) : TW_OK;
    fclose(in);
    return status;
}

/** Beside the weights that the run began with. */
static tw_status_t copy_from_model(const char *model, const char *folder)
{
    static const char *const names[] = {"tokenizer.json",
                                        "tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "generation_config.json",
                                        "added_tokens.json",
                                        "vocab.json",
                                        "merges.txt",
                                        NULL};
    struct stat info;
    char from[PATH_BYTES];
    if (!*model || stat(model, &info) != 0 || !S_ISDIR(info.st_mode)) {
        return TW_OK;
    }
    for (const char *const *name = names; *name; name++) {
        if (snprintf(from, sizeof(from), "%s/%s", model, *name) < (int)sizeof(from)) {
            TW_TRY(copy_file(from, folder, *name));
        }
    }
    return TW_OK;
}

/** What the text was read with is stronger than what the model came with. */
static tw_status_t copy_tokenizer(const tw_train_options_t *o, const char *folder)
{
    TW_TRY(copy_from_model(o->init_from, folder));
    TW_TRY(copy_file(o->tokenizer, folder, "tokenizer.json"));
    TW_TRY(copy_file(o->vocab, folder, "vocab.json"));
    return copy_file(o->merges, folder, "merges.txt");
}

tw_status_t tw_export_model(const tw_train_options_t *options, const tw_model_t *model,
                            const char *checkpoints, uint64_t step, const char *folder)
{
    tw_checkpoint_t *checkpoint;
    TW_TRY(tw_checkpoint_is_step(checkpoints)
               ? tw_checkpoint_open(checkpoints, model, &checkpoint)
               : tw_checkpoint_open_step(checkpoints, step, model, &checkpoint));
    tw_status_t status = tw_weights_export(checkpoint, model, tw_model_weight_type(model), folder);
    tw_checkpoint_close(checkpoint);
    return status == TW_OK ? copy_tokenizer(options, folder) : status;
}
