/** The state of a configuration. Private to config. */
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

/** Something that the user should know of a key. */
typedef struct tw_train_note {
    char *key;
    const char *reason; /**< why the key means nothing here; NULL: its value is "auto" */
    int is_file;        /**< 1: the key is in the file; 0: on the command line */
} tw_train_note_t;

struct tw_train_config {
    tw_train_options_t options;
    char *name;             /* name of the file */
    unsigned char *origins; /* [n_fields of the table] tw_train_origin_t */
    tw_train_note_t *notes; /* [n_notes] */
    size_t n_notes;
};

/** A combination of keys that may be wrong, and why it is. */
typedef struct tw_train_refusal {
    int is_wrong;
    const char *why;
} tw_train_refusal_t;
/** Log the reason and return TW_ERR_CONFIG. */
tw_status_t tw_train_refuse(const char *why);
/** Log the first refusal whose combination is wrong, and return TW_ERR_CONFIG, or TW_OK if none is. */
tw_status_t tw_train_refuse_any(const tw_train_refusal_t *refusals, size_t n);
/** A list and its length, as arguments. */
#define TW_TRAIN_LIST(list) list, sizeof(list) / sizeof((list)[0])

/** Keep a note for tw_train_config_say; if memory is short it is lost. */
void tw_train_note(tw_train_config_t *config, int is_file, const char *key, const char *reason);
void tw_train_notes_cleanup(tw_train_config_t *config);
/** Take the shape of the model that model.init_from names, if there is a config.json beside the weights: it
 *  sets the keys that the user has not set. TW_ERR_CONFIG, logged: the user has set other values, or the
 *  model is not known here. */
tw_status_t tw_train_pretrained(tw_train_config_t *config);
/** Keep a note of a key of the table, if somebody has set it. */
void tw_train_note_key(tw_train_config_t *config, const char *key, const char *reason);
/** Note each key that the user has set and that has no effect with the other keys. Call it after they are
 *  resolved. */
void tw_train_note_without_effect(tw_train_config_t *config);
/** Return 1 if the user has set this key. */
int tw_train_is_said(const tw_train_config_t *config, const char *key);
/** Fill in options.codecs, and write thinwire.weights and thinwire.gradients out in full. TW_ERR_CONFIG,
 *  logged: a codec is unknown, two keys ask for one, or it does not work with other keys. */
tw_status_t tw_train_codecs_resolve(tw_train_config_t *config, int n_nodes);
/** Note that a member's value follows from other keys. */
void tw_train_note_follows(tw_train_config_t *config, const void *member);

TW_C_END
