/* Finds encoded text in the folder of caches by a checksum of all its inputs, or runs encode.py. */
#include "trainer/data/encode.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <xxhash.h>

/* The source of encode.py. */
extern const char tw_data_encode_program[];

#define NO_PYTHON                                                                               \
    "a vocabulary needs Python and its package tokenizers (pip install tokenizers); TW_PYTHON " \
    "names another interpreter"

/* ---- the program --------------------------------------------------------------------------------------- */

/** Start a program. Its stdout can be read from *from. */
static tw_status_t encode_start(char *const argv[], int *from, pid_t *pid)
{
    int ends[2];
    posix_spawn_file_actions_t actions;
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return tw_fail(tw_status_from_errno(errno), "%s: cannot make a pipe: %s", argv[0], strerror(errno));
    }
    int code = posix_spawn_file_actions_init(&actions);
    if (code == 0) {
        code = posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
        code = code == 0 ? posix_spawnp(pid, argv[0], &actions, NULL, argv, environ) : code;
        posix_spawn_file_actions_destroy(&actions);
    }
    close(ends[1]);
    *from = ends[0];
    if (code != 0) {
        close(ends[0]);
    }
    TW_FAIL_IF(code != 0, tw_status_from_errno(code), "%s: %s; " NO_PYTHON, argv[0], strerror(code));
    return TW_OK;
}

/** Wait until the program ends, and log what it has printed. */
static tw_status_t encode_finish(const char *python, int from, pid_t pid)
{
    static const tw_status_t statuses[] = {TW_OK, TW_ERR_FORMAT, TW_ERR_IO, TW_ERR_NOT_FOUND};
    char said[2 * TW_DATA_PATH_BYTES];
    size_t n = 0;
    ssize_t got;
    int code = 0;
    while ((got = TEMP_FAILURE_RETRY(read(from, said + n, sizeof(said) - 1 - n))) > 0) {
        n += (size_t)got;
    }
    close(from);
    said[n] = '\0';
    said[strcspn(said, "\n")] = '\0';
    /* If this process ignores SIGCHLD, there is no code: then a failure shows when the file is missing. */
    (void)TEMP_FAILURE_RETRY(waitpid(pid, &code, 0));
    unsigned status = WIFEXITED(code) ? (unsigned)WEXITSTATUS(code) : 1;
    if (code != 0 && n == 0) {
        snprintf(said, sizeof(said), "%s: ended with %s %d", python, WIFEXITED(code) ? "status" : "signal",
                 WIFEXITED(code) ? WEXITSTATUS(code) : WTERMSIG(code));
    }
    TW_FAIL_IF(code != 0, status < sizeof(statuses) / sizeof(statuses[0]) ? statuses[status] : TW_ERR_IO,
               "%s", said);
    return TW_OK;
}

static tw_status_t encode_run(char *const argv[], const char *path)
{
    int from = -1;
    pid_t pid = -1;
    TW_TRY(encode_start(argv, &from, &pid));
    TW_TRY(encode_finish(argv[0], from, pid));
    TW_FAIL_IF(access(path, R_OK) != 0, TW_ERR_IO, "%s: has not been written", path);
    return TW_OK;
}

/* ---- the cache ----------------------------------------------------------------------------------------- */

static tw_status_t add_checksum(const char *path, uint64_t *checksum)
{
    tw_data_map_t map;
    tw_status_t status = tw_data_map(path, &map);
    if (status == TW_OK) {
        *checksum = XXH3_64bits_withSeed(map.at ? map.at : (const unsigned char *)"", map.bytes, *checksum);
        tw_data_unmap(&map);
    }
    return status;
}

/** Compute a checksum of all that a cached file depends on. */
static tw_status_t encode_checksum(const char *const files[3], const char *const words[2], uint64_t *checksum)
{
    *checksum = 2; /* version of the encoding */
    for (size_t i = 0; i < 3; i++) {
        TW_TRY(files[i] && *files[i] ? add_checksum(files[i], checksum) : TW_OK);
    }
    for (size_t i = 0; i < 2; i++) {
        *checksum = XXH3_64bits_withSeed(words[i], strlen(words[i]) + 1, *checksum);
    }
    return TW_OK;
}

tw_status_t tw_data_encode(const tw_data_vocabulary_t *vocabulary, const char *source,
                           const tw_data_config_t *chats, char *path)
{
    static const char *const styles[] = {
        [TW_DATA_STYLE_NONE] = "none", [TW_DATA_STYLE_CHATML] = "chatml", [TW_DATA_STYLE_LLAMA3] = "llama3"};
    const char *kind = !source ? "vocabulary" : chats ? "chats" : "text", *python = getenv("TW_PYTHON");
    const char *style = chats ? styles[chats->chat_style] : "";
    const char *end = chats && chats->chat_end ? chats->chat_end : "";
    uint64_t checksum;
    TW_TRY(encode_checksum((const char *const[]){vocabulary->path, vocabulary->merges, source},
                           (const char *const[]){style, end}, &checksum));
    snprintf(path, TW_DATA_PATH_BYTES, "%.*s/%s-%016" PRIx64 ".bin", TW_DATA_PATH_BYTES - 32,
             vocabulary->folder, kind, checksum);
    if (access(path, R_OK) == 0) {
        return TW_OK;
    }
    const char *type = source && tw_data_vocabulary_token_bytes(vocabulary) == sizeof(uint32_t) ? "I" : "H";
    const char *argv[] = {python && *python ? python : "python3",
                          "-c", /* without the next line, -c would import modules from the current folder */
                          "import sys; sys.path[:] = filter(None, sys.path); exec(sys.argv.pop(1))",
                          tw_data_encode_program,
                          path,
                          vocabulary->path,
                          vocabulary->merges,
                          kind,
                          source,
                          type,
                          chats ? style : NULL,
                          end,
                          NULL};
    return encode_run((char *const *)argv, path);
}

/* ---- the vocabulary ------------------------------------------------------------------------------------ */

/** Map the file that has the text of each token. */
static tw_status_t vocabulary_read(tw_data_vocabulary_t *vocabulary, const char *path)
{
    TW_TRY(tw_data_map(path, &vocabulary->map));
    const uint64_t *words = (const void *)vocabulary->map.at;
    size_t n_words = vocabulary->map.bytes / sizeof(*words);
    int is_whole = n_words > 1 && words[0] > 0 && words[0] < n_words;
    vocabulary->n = is_whole ? (size_t)words[0] : 0;
    vocabulary->ends = words + 1;
    for (size_t i = 0; i < vocabulary->n; i++) {
        is_whole = is_whole && words[1 + i] >= (i > 0 ? words[i] : 0);
    }
    size_t n_bytes = vocabulary->map.bytes - (vocabulary->n + 1) * sizeof(*words);
    TW_FAIL_IF(!is_whole || words[vocabulary->n] != n_bytes, TW_ERR_FORMAT, "%s: is not whole; remove it",
               path);
    return TW_OK;
}

tw_status_t tw_data_vocabulary_create(const tw_data_config_t *config, const char *folder,
                                      tw_data_vocabulary_t **out)
{
    int is_json = config->tokenizer && *config->tokenizer;
    tw_data_vocabulary_t *made = calloc(1, sizeof(*made));
    char path[TW_DATA_PATH_BYTES];
    TW_FAIL_IF(!made, TW_ERR_NO_MEMORY, "data: out of memory");
    snprintf(made->path, sizeof(made->path), "%s", is_json ? config->tokenizer : config->vocab);
    snprintf(made->merges, sizeof(made->merges), "%s", is_json ? "" : config->merges);
    snprintf(made->folder, sizeof(made->folder), "%s", folder);
    tw_status_t status = tw_data_encode(made, NULL, NULL, path);
    status = status == TW_OK ? vocabulary_read(made, path) : status;
    if (status != TW_OK) {
        tw_data_vocabulary_destroy(made);
        return status;
    }
    *out = made;
    return TW_OK;
}

void tw_data_vocabulary_destroy(tw_data_vocabulary_t *vocabulary)
{
    if (vocabulary) {
        tw_data_unmap(&vocabulary->map);
        free(vocabulary);
    }
}

size_t tw_data_vocabulary_token_bytes(const tw_data_vocabulary_t *vocabulary)
{
    return vocabulary->n > (size_t)UINT16_MAX + 1 ? sizeof(uint32_t) : sizeof(uint16_t);
}

const unsigned char *tw_data_vocabulary_text(const tw_data_vocabulary_t *vocabulary, uint32_t token,
                                             size_t *n_bytes)
{
    uint64_t begin = token > 0 && token < vocabulary->n ? vocabulary->ends[token - 1] : 0;
    *n_bytes = token < vocabulary->n ? (size_t)(vocabulary->ends[token] - begin) : 0;
    return (const unsigned char *)(vocabulary->ends + vocabulary->n) + begin;
}
