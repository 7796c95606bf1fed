/* When packets without a time of their own leave: PACKETRIG_SCHEDULE.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "preload.h"

#include <stdlib.h>
#include <string.h>

enum { SERIES = 1024, NEAR = 8 };

/* Packets that leave at a distance of `every`. */
struct series {
    uint64_t cookie; /* of the socket; 0: of all sockets */
    uint8_t target[16];
    uint64_t last; /* time of the last packet; 0: the place is free */
};

static struct series table[SERIES];

/* A number with ns, us, ms or s; 0 if it is none. */
static uint64_t parse_time(const char *text, size_t length)
{
    static const struct { const char *name; double ns; } units[] = {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}};
    char *end;
    double value = strtod(text, &end);
    size_t used = (size_t)(end - text);
    for (size_t n = 0; n < sizeof units / sizeof *units; n++)
        if (used < length && length - used == strlen(units[n].name) && !strncmp(end, units[n].name, length - used) &&
            value > 0 && value * units[n].ns < 1e15)
            return (uint64_t)(value * units[n].ns);
    return 0;
}

static int parse_word(const char *word, size_t length, struct schedule *schedule)
{
    static const char *const groups[] = {"per=target", "per=socket", "per=program"};
    if (length > 6 && !strncmp(word, "every=", 6))
        return (schedule->every = parse_time(word + 6, length - 6)) ? 0 : -1;
    if (length > 6 && !strncmp(word, "ahead=", 6))
        return (schedule->ahead = parse_time(word + 6, length - 6)) ? 0 : -1;
    for (unsigned n = 0; n < 3; n++)
        if (length == strlen(groups[n]) && !strncmp(word, groups[n], length))
            return schedule->per = n, 0;
    return -1;
}

int parse_schedule(const char *text, struct schedule *schedule)
{
    schedule->every = 0;
    schedule->ahead = 10000000;
    schedule->per = PER_TARGET;
    while (*text) {
        size_t length = strcspn(text, ",");
        if (parse_word(text, length, schedule) < 0)
            return schedule->every = 0, -1;
        text += length + (text[length] == ',');
    }
    return schedule->every ? 0 : -1;
}

/* The series of a packet, or the place of the series that was not used for the longest time. */
static struct series *find_series(uint64_t cookie, const uint8_t *target)
{
    uint64_t hash = cookie;
    for (int n = 0; n < 16; n++)
        hash = (hash ^ target[n]) * 0x100000001b3u;
    struct series *oldest = NULL;
    for (unsigned n = 0; n < NEAR; n++) {
        struct series *series = &table[((hash >> 32) + n) % SERIES];
        if (series->last && series->cookie == cookie && !memcmp(series->target, target, 16))
            return series;
        if (!oldest || series->last < oldest->last)
            oldest = series;
    }
    oldest->cookie = cookie;
    memcpy(oldest->target, target, 16);
    oldest->last = 0;
    return oldest;
}

uint64_t take_slot(const struct schedule *schedule, const struct socket_packet *packet, uint64_t now, uint64_t lead)
{
    static const uint8_t all[16];
    uint64_t cookie = schedule->per == PER_SOCKET ? packet->cookie : 0;
    struct series *series = find_series(cookie, schedule->per == PER_PROGRAM ? all : packet->target);
    if (!series->last)
        return series->last = now + schedule->ahead;
    series->last += schedule->every;
    /* A program that is late for a time leaves it out; later times stay where they are. */
    if (series->last < now + lead)
        series->last += (now + lead - series->last + schedule->every - 1) / schedule->every * schedule->every;
    return series->last;
}
