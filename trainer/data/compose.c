/* Converts text to Unicode's normal form C, by ICU. */
#include <stdlib.h>

#include <unicode/unorm2.h>
#include <unicode/ustring.h>

#include "trainer/data/bpe_state.h"

/** Return 1 if all characters are below U+0300, which are composed; others begin with a byte from 0xcc on. */
static int is_simple(const unsigned char *text, size_t bytes)
{
    unsigned char largest = 0;
    for (size_t i = 0; i < bytes; i++) {
        largest = text[i] > largest ? text[i] : largest;
    }
    return largest < 0xcc;
}

/** Compose wide [n], UTF-16. The result has at most 3 n units, of at most three bytes each. */
static UErrorCode compose(const UChar *wide, int32_t n, unsigned char **composed, size_t *n_composed)
{
    UErrorCode error = U_ZERO_ERROR;
    const UNormalizer2 *form = unorm2_getNFCInstance(&error);
    if (U_FAILURE(error) || unorm2_isNormalized(form, wide, n, &error)) {
        return error;
    }
    int32_t room = 3 * n, length = 0;
    UChar *out = malloc((size_t)room * sizeof(*out));
    *composed = malloc((size_t)room * 3);
    if (!out || !*composed) {
        free(out);
        return U_MEMORY_ALLOCATION_ERROR;
    }
    int32_t n_out = unorm2_normalize(form, wide, n, out, room, &error);
    (void)u_strToUTF8((char *)*composed, 3 * room, &length, out, n_out, &error);
    *n_composed = (size_t)length;
    free(out);
    return error;
}

tw_status_t tw_bpe_compose(const char *label, const unsigned char *text, size_t bytes,
                           unsigned char **composed, size_t *n_composed)
{
    UErrorCode error = U_ZERO_ERROR;
    int32_t n = 0;
    *composed = NULL;
    if (is_simple(text, bytes)) {
        return TW_OK;
    }
    TW_FAIL_IF(bytes > INT32_MAX / 16, TW_ERR_FORMAT,
               "%s: %zu bytes without an added token are too many to be brought to normal form C; cut it",
               label, bytes);
    UChar *wide = malloc(bytes * sizeof(*wide)); /* every unit comes from at least a byte */
    if (wide) {
        (void)u_strFromUTF8(wide, (int32_t)bytes, &n, (const char *)text, (int32_t)bytes, &error);
        error = U_FAILURE(error) ? error : compose(wide, n, composed, n_composed);
    }
    free(wide);
    if (error == U_INVALID_CHAR_FOUND) { /* not UTF-8: the search for words reports where */
        return TW_OK;
    }
    if (!wide || error == U_MEMORY_ALLOCATION_ERROR || U_FAILURE(error)) {
        tw_error("%s: cannot be brought to normal form C: %s", label,
                 wide ? u_errorName(error) : "out of memory");
        free(*composed);
        *composed = NULL;
        return TW_ERR_FORMAT;
    }
    return TW_OK;
}
