/** What is behind a configuration. Private to config. */
#pragma once

#include "trainer/config/config.h"

TW_C_BEGIN

typedef enum tw_train_origin {
    TW_TRAIN_FROM_DEFAULT,
    TW_TRAIN_FROM_AUTO,
    TW_TRAIN_FROM_FILE,
    TW_TRAIN_FROM_COMMAND,
    TW_TRAIN_FOLLOWS
} tw_train_origin_t;

/** Something that a person should know of a key. */
typedef struct tw_train_note {
    char *key;
    const char *reason; /**< why it means nothing here; NULL: it is "auto" */
    int is_file;        /**< 1: it is in the file; 0: on the command line */
} tw_train_note_t;

struct tw_train_config {
    tw_train_options_t options;
    char *name;             /* the file's name */
    unsigned char *origins; /* [n_fields] of the table: tw_train_origin_t */
    tw_train_note_t *notes; /* [n_notes] */
    size_t n_notes;
};

/** A combination of keys that may be wrong, and why it is. */
typedef struct tw_train_refusal {
    int is_wrong;
    const char *why;
} tw_train_refusal_t;
/** Logs the reason and returns TW_ERR_CONFIG. */
tw_status_t tw_train_refuse(const char *why);
/** Logs the first of some refusals that is wrong. Returns TW_OK: none is. */
tw_status_t tw_train_refuse_any(const tw_train_refusal_t *refusals, size_t n);
/** A list and its length, as arguments. */
#define TW_TRAIN_LIST(list) list, sizeof(list) / sizeof((list)[0])

/** Keep a note for tw_train_config_say; where memory is short it is lost. */
void tw_train_note(tw_train_config_t *config, int is_file, const char *key, const char *reason);
void tw_train_notes_cleanup(tw_train_config_t *config);
/** The shape of the model that model.init_from names, where it says it (config.json beside the weights): keys
 *  that nobody has set follow from it. TW_ERR_CONFIG, logged: keys that say otherwise, or a model that is
 *  none of those known here. */
tw_status_t tw_train_pretrained(tw_train_config_t *config);
/** Keep a note of a key of the table, if somebody has set it. */
void tw_train_note_key(tw_train_config_t *config, const char *key, const char *reason);
/** Note each key that somebody has set and that changes nothing with the others as they are, once they are
 *  resolved. */
void tw_train_note_without_effect(tw_train_config_t *config);
/** Has a person set this key? */
int tw_train_is_said(const tw_train_config_t *config, const char *key);
/** Fills options.codecs, and writes thinwire.weights and thinwire.gradients out in full. TW_ERR_CONFIG,
 *  logged: an unknown codec, two keys that ask for something, or what does not go with other keys. */
tw_status_t tw_train_codecs_resolve(tw_train_config_t *config, int n_nodes);
/** Note that a member's value follows from other keys. */
void tw_train_note_follows(tw_train_config_t *config, const void *member);

TW_C_END
