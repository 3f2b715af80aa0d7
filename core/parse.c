/* Parsers of sizes, times and rates. They take the whole text or fail. They do not depend on the locale. */
#include "core/parse.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

typedef struct suffix {
    const char *text;
    double factor;
} suffix_t;

#define N_SUFFIXES(table) (sizeof(table) / sizeof((table)[0]))

static int is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/** Returns the length of digits[.digits][e[+-]digits] at the start of the text, with at least one digit;
 *  else 0. strtod would also accept blanks, signs, hexadecimal, inf and nan. */
static size_t number_length(const char *text)
{
    const char *p = text;
    size_t n_digits = 0;
    for (; is_digit(*p); p++) {
        n_digits++;
    }
    if (*p == '.') {
        for (++p; is_digit(*p); p++) {
            n_digits++;
        }
    }
    if (n_digits == 0) {
        return 0;
    }
    if (*p == 'e' || *p == 'E') {
        const char *exponent = p + 1;
        if (*exponent == '+' || *exponent == '-') {
            exponent++;
        }
        if (is_digit(*exponent)) {
            for (p = exponent; is_digit(*p);) {
                p++;
            }
        }
    }
    return (size_t)(p - text);
}

/** Parse with strtod and the decimal point of the C locale. */
static tw_status_t parse_c_double(const char *text, double *value)
{
    locale_t c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (c_locale == (locale_t)0) {
        return TW_ERR_NO_MEMORY;
    }
    *value = strtod_l(text, NULL, c_locale);
    freelocale(c_locale);
    return isfinite(*value) ? TW_OK : TW_ERR_INVALID;
}

static tw_status_t parse_suffixed(const char *text, const suffix_t *suffixes, size_t n_suffixes,
                                  double *value)
{
    size_t length = text ? number_length(text) : 0;
    double number;
    if (length == 0) {
        return TW_ERR_INVALID;
    }
    for (size_t i = 0; i < n_suffixes; i++) {
        if (strcasecmp(text + length, suffixes[i].text) != 0) {
            continue;
        }
        if (parse_c_double(text, &number) != TW_OK || !isfinite(number * suffixes[i].factor)) {
            return TW_ERR_INVALID;
        }
        *value = number * suffixes[i].factor;
        return TW_OK;
    }
    return TW_ERR_INVALID;
}

tw_status_t tw_parse_double(const char *text, double *value)
{
    static const suffix_t none[] = {{"", 1}};
    int negative = text && text[0] == '-';
    double magnitude;
    if (parse_suffixed(text ? text + negative : NULL, none, 1, &magnitude) != TW_OK) {
        return TW_ERR_INVALID;
    }
    *value = negative ? -magnitude : magnitude;
    return TW_OK;
}

tw_status_t tw_parse_int(const char *text, int64_t *value)
{
    const char *digits = text;
    char *end;
    if (!text) {
        return TW_ERR_INVALID;
    }
    digits += *text == '-' || *text == '+';
    if (!is_digit(*digits)) {
        return TW_ERR_INVALID;
    }
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (errno != 0 || *end != '\0') {
        return TW_ERR_INVALID;
    }
    *value = number;
    return TW_OK;
}

/** Parse plain bytes as an integer: from 2^53 on, a double is not exact. */
static tw_status_t parse_whole_bytes(const char *text, size_t *bytes)
{
    char *end;
    if (!is_digit(*text)) {
        return TW_ERR_INVALID;
    }
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    if (errno != 0 || *end != '\0' || number > SIZE_MAX) {
        return TW_ERR_INVALID;
    }
    *bytes = (size_t)number;
    return TW_OK;
}

tw_status_t tw_parse_bytes(const char *text, size_t *bytes)
{
    static const suffix_t suffixes[] = {
        {"K", 0x1p10}, {"KB", 0x1p10}, {"KiB", 0x1p10}, {"M", 0x1p20}, {"MB", 0x1p20}, {"MiB", 0x1p20},
        {"G", 0x1p30}, {"GB", 0x1p30}, {"GiB", 0x1p30}, {"T", 0x1p40}, {"TB", 0x1p40}, {"TiB", 0x1p40},
    };
    double value;
    if (!text) {
        return TW_ERR_INVALID;
    }
    if (parse_whole_bytes(text, bytes) == TW_OK) {
        return TW_OK;
    }
    if (parse_suffixed(text, suffixes, N_SUFFIXES(suffixes), &value) != TW_OK) {
        return TW_ERR_INVALID;
    }
    value = round(value);
    if (value >= (double)SIZE_MAX) {
        return TW_ERR_INVALID;
    }
    *bytes = (size_t)value;
    return TW_OK;
}

tw_status_t tw_parse_time(const char *text, double *seconds)
{
    static const suffix_t suffixes[] = {{"", 1}, {"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}};
    return parse_suffixed(text, suffixes, N_SUFFIXES(suffixes), seconds);
}

tw_status_t tw_parse_rate(const char *text, double *bits_per_second)
{
    static const suffix_t suffixes[] = {{"", 1},       {"bit", 1},    {"kbit", 1e3},
                                        {"mbit", 1e6}, {"gbit", 1e9}, {"tbit", 1e12}};
    if (text && (strcasecmp(text, "none") == 0 || strcasecmp(text, "auto") == 0)) {
        *bits_per_second = 0;
        return TW_OK;
    }
    return parse_suffixed(text, suffixes, N_SUFFIXES(suffixes), bits_per_second);
}

tw_status_t tw_parse_count(const char *text, double *count)
{
    static const suffix_t suffixes[] = {{"", 1}, {"K", 1e3}, {"M", 1e6}, {"G", 1e9}};
    return parse_suffixed(text, suffixes, N_SUFFIXES(suffixes), count);
}

tw_status_t tw_parse_bool(const char *text, int *value)
{
    static const char *const words[][2] = {
        {"n", "y"}, {"no", "yes"}, {"off", "on"}, {"false", "true"}, {"0", "1"}};
    for (size_t i = 0; text && i < N_SUFFIXES(words); i++) {
        for (int truth = 0; truth < 2; truth++) {
            if (strcasecmp(text, words[i][truth]) == 0) {
                *value = truth;
                return TW_OK;
            }
        }
    }
    return TW_ERR_INVALID;
}

int tw_word_is(const char *text, const char *word)
{
    return strcasecmp(text, word) == 0 || (strcasecmp(text, "exact") == 0 && strcasecmp(word, "plain") == 0);
}

tw_status_t tw_parse_choice(const char *text, const char *const *choices, int *index)
{
    for (int i = 0; text && choices[i]; i++) {
        if (tw_word_is(text, choices[i])) {
            *index = i;
            return TW_OK;
        }
    }
    return TW_ERR_INVALID;
}

const char *tw_format_bytes(size_t bytes, char *buf, size_t buf_bytes)
{
    static const char units[] = {'K', 'M', 'G', 'T'};
    int unit = -1;
    size_t one = 1;
    while (unit + 1 < (int)sizeof(units) && bytes / 1024 >= one) {
        one *= 1024;
        unit++;
    }
    if (unit < 0) {
        snprintf(buf, buf_bytes, "%zu", bytes);
    } else if (bytes % one == 0) {
        snprintf(buf, buf_bytes, "%zu%c", bytes / one, units[unit]);
    } else {
        snprintf(buf, buf_bytes, "%.2f%c", (double)bytes / (double)one, units[unit]);
    }
    return buf;
}
