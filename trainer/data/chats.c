/* Encodes examples of chats and completions, of which only the answers are learned. */
#include "trainer/data/chats.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>
#include <xxhash.h>

/* How messages are written, by tw_data_style_t: as the models' own templates do, but without what these add
 * (a default system message, the date). */
static const struct {
    const char *begin, *before_role, *after_role, *end, *after;
    int is_trimmed;
} styles[] = {
    [TW_DATA_STYLE_CHATML] = {"", "<|im_start|>", "\n", "<|im_end|>", "\n", 0},
    [TW_DATA_STYLE_LLAMA3] = {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>\n\n",
                              "<|eot_id|>", "", 1},
};

/* A file that is being encoded. */
typedef struct chats {
    const char *path;
    const tw_bpe_t *bpe;
    const tw_data_chat_t *chat;
    size_t line;
    FILE *held; /* text that is not encoded yet, all learned or all not */
    char *text;
    size_t bytes;
    int is_learned;
    tw_data_writer_t tokens, mask;
} chats_t;

static tw_status_t chats_refuse(const chats_t *chats, const char *what)
{
    return tw_fail(TW_ERR_FORMAT, "%s: line %zu: %s", chats->path, chats->line, what);
}

/* ---- out ----------------------------------------------------------------------------------------------- */

static tw_status_t write_tokens(void *ctx, const uint32_t *tokens, size_t n)
{
    chats_t *chats = ctx;
    size_t bytes = tw_data_encoded_bytes(chats->bpe);
    for (size_t i = 0; i < n; i++) { /* little-endian: a narrow one's bytes come first */
        fwrite(&tokens[i], bytes, 1, chats->tokens.out);
        fputc(chats->is_learned, chats->mask.out);
    }
    return TW_OK;
}

/** Encode the text that is held. */
static tw_status_t flush(chats_t *chats)
{
    if (!chats->held) {
        return TW_OK;
    }
    int is_short = fclose(chats->held) != 0;
    chats->held = NULL;
    tw_status_t status = is_short ? TW_ERR_NO_MEMORY
                                  : tw_bpe_encode(chats->bpe, chats->path, (const unsigned char *)chats->text,
                                                  chats->bytes, write_tokens, chats);
    free(chats->text);
    chats->text = NULL;
    return status;
}

static tw_status_t chats_add_bytes(chats_t *chats, int is_learned, const char *text, size_t bytes)
{
    if (bytes == 0) {
        return TW_OK;
    }
    if (!chats->held || is_learned != chats->is_learned) {
        TW_TRY(flush(chats));
        chats->is_learned = is_learned;
        chats->held = open_memstream(&chats->text, &chats->bytes);
    }
    TW_FAIL_IF(!chats->held || fwrite(text, 1, bytes, chats->held) != bytes, TW_ERR_NO_MEMORY,
               "%s: out of memory", chats->path);
    return TW_OK;
}

static tw_status_t chats_add(chats_t *chats, int is_learned, const char *text)
{
    return chats_add_bytes(chats, is_learned, text, strlen(text));
}

static tw_status_t add_json(chats_t *chats, int is_learned, const json_t *text)
{
    return chats_add_bytes(chats, is_learned, json_string_value(text), json_string_length(text));
}

/* ---- in ------------------------------------------------------------------------------------------------ */

static tw_status_t add_content(chats_t *chats, int is_learned, const json_t *content)
{
    static const char blanks[] = " \t\n\v\f\r";
    const char *text = json_string_value(content);
    size_t bytes = json_string_length(content);
    if (styles[chats->chat->style].is_trimmed) {
        size_t skip = strspn(text, blanks);
        text += skip;
        bytes -= skip;
        while (bytes > 0 && strchr(blanks, text[bytes - 1])) {
            bytes--;
        }
    }
    return chats_add_bytes(chats, is_learned, text, bytes);
}

static tw_status_t add_message(chats_t *chats, const json_t *message)
{
    const json_t *role = json_object_get(message, "role"), *content = json_object_get(message, "content");
    int style = chats->chat->style;
    if (style == TW_DATA_STYLE_NONE) {
        return chats_refuse(chats, "messages, but thinwire.chat_style does not say how they are written");
    }
    if (!json_is_string(role) || !json_is_string(content)) {
        return chats_refuse(chats, "a message has a role and a content, both texts");
    }
    int is_learned = strcmp(json_string_value(role), "assistant") == 0;
    TW_TRY(chats_add(chats, 0, styles[style].before_role));
    TW_TRY(add_json(chats, 0, role));
    TW_TRY(chats_add(chats, 0, styles[style].after_role));
    TW_TRY(add_content(chats, is_learned, content));
    TW_TRY(chats_add(chats, is_learned, styles[style].end));
    return chats_add(chats, 0, styles[style].after);
}

static tw_status_t add_messages(chats_t *chats, const json_t *messages)
{
    size_t i;
    const json_t *message;
    TW_TRY(json_array_size(messages) > 0 ? TW_OK : chats_refuse(chats, "there is no message"));
    json_array_foreach(messages, i, message)
    {
        TW_TRY(add_message(chats, message));
    }
    return TW_OK;
}

static tw_status_t add_example(chats_t *chats, const json_t *example)
{
    const json_t *messages = json_object_get(example, "messages"), *text = json_object_get(example, "text");
    const json_t *prompt = json_object_get(example, "prompt");
    const json_t *completion = json_object_get(example, "completion");
    const char *end = chats->chat->end ? chats->chat->end : "";
    if (json_is_array(messages) || (json_is_array(prompt) && json_is_array(completion))) {
        TW_TRY(chats_add(chats, 0, styles[chats->chat->style].begin ? styles[chats->chat->style].begin : ""));
        TW_TRY(add_messages(chats, messages ? messages : prompt));
        return messages ? TW_OK : add_messages(chats, completion);
    }
    if (json_is_string(prompt) && json_is_string(completion)) {
        TW_TRY(add_json(chats, 0, prompt));
        TW_TRY(add_json(chats, 1, completion));
        return chats_add(chats, 1, end);
    }
    if (!json_is_string(text)) {
        return chats_refuse(chats, "neither messages, nor a prompt with its completion, nor a text");
    }
    TW_TRY(add_json(chats, 1, text));
    return chats_add(chats, 1, end);
}

/** Encode a line's example. It is encoded alone, so no token spans two examples. */
static tw_status_t chats_add_line(chats_t *chats, const char *line, size_t bytes)
{
    json_error_t error;
    size_t skip = strspn(line, " \t\r");
    if (bytes <= skip) {
        return TW_OK;
    }
    json_t *json = json_loadb(line, bytes, 0, &error);
    tw_status_t status = json_is_object(json) ? add_example(chats, json)
                                              : chats_refuse(chats, json ? "no object" : error.text);
    json_decref(json);
    return status == TW_OK ? flush(chats) : status;
}

static tw_status_t add_lines(chats_t *chats, const tw_data_map_t *map)
{
    tw_status_t status = TW_OK;
    const char *at = (const char *)map->at, *end = at + map->bytes;
    while (at < end && status == TW_OK) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        size_t bytes = (size_t)((stop ? stop : end) - at);
        char *line = strndup(at, bytes);
        chats->line++;
        status = line ? chats_add_line(chats, line, strlen(line)) : TW_ERR_NO_MEMORY;
        free(line);
        at += bytes + 1;
    }
    return status;
}

/* ---- from first to last -------------------------------------------------------------------------------- */

static tw_status_t write_files(chats_t *chats, const char *path, const char *mask)
{
    tw_data_map_t map;
    TW_TRY(tw_data_map(chats->path, &map));
    tw_status_t status = tw_data_writer_open(&chats->tokens, path);
    if (status == TW_OK) {
        status = tw_data_writer_open(&chats->mask, mask);
        status = status == TW_OK ? add_lines(chats, &map) : status;
        if (chats->held) {
            fclose(chats->held);
            free(chats->text);
        }
        status = chats->mask.out ? tw_data_writer_close(&chats->mask, status) : status;
        /* the mask is written before: whoever sees the tokens finds it */
        status = tw_data_writer_close(&chats->tokens, status);
    }
    tw_data_unmap(&map);
    return status;
}

tw_status_t tw_data_encode_chats(const char *chats_path, const tw_data_vocab_t *vocab,
                                 const tw_data_chat_t *chat, const char *folder, char *path)
{
    chats_t chats = {.path = chats_path, .bpe = vocab->bpe, .chat = chat};
    char mask[TW_DATA_PATH_BYTES];
    const char *end = chat->end ? chat->end : "";
    uint64_t checksum;
    if (tw_bpe_puts_blanks(vocab->bpe)) { /* it would also put some between a prompt and its completion */
        return tw_fail(
            TW_ERR_FORMAT,
            "%s: examples are not read with SentencePiece's blanks: write their tokens to NAME.bin, and "
            "thinwire.loss_mask's NAME.mask",
            chats_path);
    }
    TW_TRY(tw_data_encoding_checksum(chats_path, vocab, &checksum));
    checksum = XXH3_64bits_withSeed(end, strlen(end), checksum + (uint64_t)chat->style);
    snprintf(path, TW_DATA_PATH_BYTES, "%.*s/chats-%016" PRIx64 ".bin", TW_DATA_PATH_BYTES - 32, folder,
             checksum);
    snprintf(mask, sizeof(mask), "%.*s.mask", (int)(strlen(path) - strlen(".bin")), path);
    return access(path, R_OK) == 0 ? TW_OK : write_files(&chats, path, mask);
}
