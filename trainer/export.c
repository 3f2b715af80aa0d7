/* Saves a trained model for transformers: weights, config.json, and the files that were beside the original
 * model and the tokenizer. */
#include "trainer/export.h"

#include <dirent.h>
#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "trainer/checkpoint/checkpoint.h"
#include "trainer/input.h"

#define PATH_BYTES 4096
#define MOST_BYTES (256 << 20)

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

static tw_status_t write_copy(FILE *in, const char *to)
{
    char temporary[PATH_BYTES + 8];
    snprintf(temporary, sizeof(temporary), "%s.tmp", to);
    FILE *out = fopen(temporary, "we");
    if (!out) {
        return tw_input_failed(temporary, "write it");
    }
    int wrong = copy_bytes(in, out) != 0 || fflush(out) != 0 || fsync(fileno(out)) != 0;
    if (fclose(out) != 0 || wrong || rename(temporary, to) != 0) {
        tw_status_t status = tw_input_failed(to, "write it");
        (void)unlink(temporary);
        return status;
    }
    return TW_OK;
}

static tw_status_t copy_file(const char *from, const char *folder, const char *name)
{
    char to[PATH_BYTES];
    TW_FAIL_IF(snprintf(to, sizeof(to), "%s/%s", folder, name) >= (int)sizeof(to), TW_ERR_INVALID,
               "%s/%s: the name is too long", folder, name);
    FILE *in = fopen(from, "re");
    if (!in) {
        return tw_input_failed(from, "read it");
    }
    tw_status_t status = write_copy(in, to);
    fclose(in);
    return status;
}

/* ---- what comes along ---------------------------------------------------------------------------------- */

/** Return 1 if a file is not copied: other weights, a trainer's state, or config.json, which is written
 *  anew. */
static int stays_behind(const char *name)
{
    static const char *const ends[] = {
        ".safetensors", ".bin",       ".pt",  ".pth", ".ckpt", ".h5",     ".msgpack",    ".gguf",
        ".onnx",        ".onnx_data", ".npy", ".npz", ".pkl",  ".distcp", ".index.json", ".tmp"};
    static const char *const begins[] = {
        ".", "optimizer", "scheduler", "rng_state", "trainer_state", "training_args", "global_step"};
    size_t length = strlen(name);
    int stays = strcmp(name, "config.json") == 0;
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]) && !stays; i++) {
        size_t n = strlen(ends[i]);
        stays = length >= n && strcmp(name + length - n, ends[i]) == 0;
    }
    for (size_t i = 0; i < sizeof(begins) / sizeof(begins[0]) && !stays; i++) {
        stays = strncmp(name, begins[i], strlen(begins[i])) == 0;
    }
    return stays;
}

/** Copy a file, unless it is missing, not a regular file, or too large to be a part of a model's settings. */
static tw_status_t copy_if_small(const char *model, const char *folder, const char *name)
{
    struct stat info;
    char from[PATH_BYTES];
    if (snprintf(from, sizeof(from), "%s/%s", model, name) >= (int)sizeof(from) || stat(from, &info) != 0 ||
        !S_ISREG(info.st_mode)) {
        return TW_OK;
    }
    if (info.st_size > MOST_BYTES) {
        tw_warn("%s: left behind: more than %d MB are no part of a tokenizer", from, MOST_BYTES >> 20);
        return TW_OK;
    }
    return copy_file(from, folder, name);
}

static tw_status_t copy_from_model(const char *model, const char *folder)
{
    const struct dirent *entry;
    tw_status_t status = TW_OK;
    DIR *files = opendir(model);
    if (!files) {
        return tw_input_failed(model, "look for what lies beside the weights");
    }
    while (status == TW_OK && (entry = readdir(files))) {
        status = stays_behind(entry->d_name) ? TW_OK : copy_if_small(model, folder, entry->d_name);
    }
    closedir(files);
    return status;
}

/** Copy the tokenizer, and the files beside it that belong to a tokenizer. */
static tw_status_t copy_tokenizer(const tw_train_options_t *o, const char *beside, const char *folder)
{
    static const char *const names[] = {"tokenizer_config.json", "special_tokens_map.json",
                                        "added_tokens.json",     "generation_config.json",
                                        "chat_template.jinja",   "chat_template.json"};
    for (size_t i = 0; *beside && i < sizeof(names) / sizeof(names[0]); i++) {
        TW_TRY(copy_if_small(beside, folder, names[i]));
    }
    TW_TRY(*o->tokenizer ? copy_file(o->tokenizer, folder, "tokenizer.json") : TW_OK);
    TW_TRY(*o->vocab ? copy_file(o->vocab, folder, "vocab.json") : TW_OK);
    return *o->merges ? copy_file(o->merges, folder, "merges.txt") : TW_OK;
}

/** Get the folder that a path names, or the folder that contains it. "" if the path is empty. */
static void folder_of(const char *path, char folder[PATH_BYTES])
{
    struct stat info;
    char copy[PATH_BYTES];
    snprintf(copy, sizeof(copy), "%s", path);
    int is_folder = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    snprintf(folder, PATH_BYTES, "%s", is_folder || !*path ? path : dirname(copy));
}

/** Copy the original model's files. Then copy the tokenizer of the training over the model's. */
static tw_status_t copy_all(const tw_train_options_t *o, const char *beside, const char *model,
                            const char *folder)
{
    TW_TRY(*model && strcmp(model, folder) != 0 ? copy_from_model(model, folder) : TW_OK);
    return copy_tokenizer(o, beside, folder);
}

tw_status_t tw_export_model(const tw_train_options_t *options, const tw_model_t *model,
                            const char *checkpoints, uint64_t step, const char *folder)
{
    char beside[PATH_BYTES], from[PATH_BYTES];
    tw_checkpoint_t *checkpoint;
    folder_of(*options->tokenizer ? options->tokenizer : options->vocab, beside);
    folder_of(options->init_from, from);
    const char *const sources[] = {beside, from, NULL};
    TW_TRY(tw_checkpoint_is_step(checkpoints)
               ? tw_checkpoint_open(checkpoints, model, &checkpoint)
               : tw_checkpoint_open_step(checkpoints, step, model, &checkpoint));
    tw_status_t status = tw_weights_export(checkpoint, model, tw_model_weight_type(model), folder, sources);
    tw_checkpoint_close(checkpoint);
    return status == TW_OK ? copy_all(options, beside, from, folder) : status;
}
