/** Parses launchers' texts: host lists, task counts, contacts. */
#include <arpa/inet.h>
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "transport/rendezvous/job.h"

/** Append text[0..n) to host. Returns 0 if it does not fit. */
static int text_append(char *host, size_t host_bytes, const char *text, size_t n)
{
    const size_t used = strlen(host);
    if (n >= host_bytes - used) {
        return 0;
    }
    memcpy(host + used, text, n);
    host[used + n] = '\0';
    return 1;
}

static int is_host_text(const char *host)
{
    if (!*host) {
        return 0;
    }
    for (; *host; host++) {
        if (!isalnum((unsigned char)*host) && !strchr("-._:", *host)) {
            return 0;
        }
    }
    return 1;
}

tw_status_t tw_hostlist_first(const char *list, char *host, size_t host_bytes)
{
    host[0] = '\0';
    while (*list && *list != ',') {
        const char *end;
        if (*list != '[') {
            end = list + strcspn(list, ",[");
            if (!text_append(host, host_bytes, list, (size_t)(end - list))) {
                return TW_ERR_FORMAT;
            }
            list = end;
            continue;
        }
        /* The first host of a set ends before the set's first '-' or ','. */
        list++;
        end = strchr(list, ']');
        if (!end || !text_append(host, host_bytes, list, strcspn(list, "-,]"))) {
            return TW_ERR_FORMAT;
        }
        list = end + 1;
    }
    return is_host_text(host) ? TW_OK : TW_ERR_FORMAT;
}

int tw_tasks_per_node(const char *list, int index)
{
    while (index >= 0 && isdigit((unsigned char)*list)) {
        char *end;
        const long tasks = strtol(list, &end, 10);
        long repeat = 1;
        if (end[0] == '(' && end[1] == 'x') {
            repeat = strtol(end + 2, &end, 10);
            end += *end == ')';
        }
        if (repeat < 1 || tasks < 1 || tasks > TW_JOB_WORLD_MAX) {
            return -1;
        }
        if (index < repeat) {
            return (int)tasks;
        }
        index -= (int)repeat;
        list = end + (*end == ',');
    }
    return -1;
}

/** Parse an address such as "tcp6://[fd00::2]:36781". */
static tw_status_t contact_ipv6(const char *contact, char *host, size_t host_bytes)
{
    static const char scheme[] = "tcp6://[";
    const char *start = strstr(contact, scheme);
    const size_t length = start ? strcspn(start + strlen(scheme), "],;") : 0;
    struct in6_addr ignored;
    if (!start || start[strlen(scheme) + length] != ']' ||
        !text_append(host, host_bytes, start + strlen(scheme), length)) {
        return TW_ERR_FORMAT;
    }
    return inet_pton(AF_INET6, host, &ignored) == 1 ? TW_OK : TW_ERR_FORMAT;
}

tw_status_t tw_contact_host(const char *contact, char *host, size_t host_bytes)
{
    static const char scheme[] = "tcp://";
    const char *start = strstr(contact, scheme);
    host[0] = '\0';
    if (!start) {
        return contact_ipv6(contact, host, host_bytes);
    }
    start += strlen(scheme);
    if (!text_append(host, host_bytes, start, strcspn(start, ",:;"))) {
        return TW_ERR_FORMAT;
    }
    return is_host_text(host) ? TW_OK : TW_ERR_FORMAT;
}
