/* Packets for `packetrig probe serve`: see packetrig_release.h. A program that has packets of its own needs none of this.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "packetrig_release.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <unistd.h>

uint16_t packetrig_checksum_add(uint16_t start, const void *bytes, size_t size)
{
    const uint8_t *at = bytes;
    uint64_t sum = start;
    for (; size > 1; size -= 2, at += 2)
        sum += (uint32_t)at[0] << 8 | at[1];
    if (size)
        sum += (uint32_t)at[0] << 8;
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)sum;
}

static void put16(uint8_t *at, size_t value) { at[0] = (uint8_t)(value >> 8), at[1] = (uint8_t)value; }

/* Writes an IP header for `size` bytes of `protocol`; the pseudo header's sum goes to `sum`. Returns its length. */
static int build_ip(uint8_t *at, size_t room, const struct sockaddr *source, const struct sockaddr *target,
                    uint8_t protocol, size_t size, uint16_t *sum)
{
    int is_v6 = target->sa_family == AF_INET6;
    size_t header = is_v6 ? 40 : 20, width = is_v6 ? 16 : 4;
    if ((target->sa_family != AF_INET && !is_v6) || source->sa_family != target->sa_family)
        return errno = EAFNOSUPPORT, -1;
    if (size + header > room || size + header > 65535)
        return errno = EMSGSIZE, -1;
    memset(at, 0, header);
    uint8_t length[4] = {0, 0, (uint8_t)(size >> 8), (uint8_t)size}, next[4] = {0, 0, 0, protocol};
    if (is_v6) {
        at[0] = 0x60;
        put16(at + 4, size);
        at[6] = protocol;
        at[7] = 64;
        memcpy(at + 8, &((const struct sockaddr_in6 *)(const void *)source)->sin6_addr, 16);
        memcpy(at + 24, &((const struct sockaddr_in6 *)(const void *)target)->sin6_addr, 16);
    } else {
        at[0] = 0x45;
        put16(at + 2, size + header);
        at[6] = 0x40; /* do not fragment */
        at[8] = 64;
        at[9] = protocol;
        memcpy(at + 12, &((const struct sockaddr_in *)(const void *)source)->sin_addr, 4);
        memcpy(at + 16, &((const struct sockaddr_in *)(const void *)target)->sin_addr, 4);
        put16(at + 10, (uint16_t)~packetrig_checksum_add(0, at, header));
    }
    *sum = packetrig_checksum_add(0, at + header - 2 * width, 2 * width);
    *sum = packetrig_checksum_add(packetrig_checksum_add(*sum, length, 4), next, 4);
    return (int)header;
}

static uint16_t port_of(const struct sockaddr *address)
{
    return ntohs(address->sa_family == AF_INET6 ? ((const struct sockaddr_in6 *)(const void *)address)->sin6_port
                                                : ((const struct sockaddr_in *)(const void *)address)->sin_port);
}

int packetrig_build_udp(void *buffer, size_t room, const struct sockaddr *source, const struct sockaddr *target,
                        const void *payload, size_t size)
{
    uint16_t sum;
    int header = build_ip(buffer, room, source, target, IPPROTO_UDP, size + 8, &sum);
    uint8_t *udp = (uint8_t *)buffer + header;
    if (header < 0)
        return -1;
    put16(udp, port_of(source));
    put16(udp + 2, port_of(target));
    put16(udp + 4, size + 8);
    put16(udp + 6, 0);
    if (size)
        memcpy(udp + 8, payload, size);
    sum = (uint16_t)~packetrig_checksum_add(sum, udp, size + 8);
    put16(udp + 6, sum ? sum : 0xffff);
    return header + 8 + (int)size;
}

int packetrig_build_echo(void *buffer, size_t room, const struct sockaddr *source, const struct sockaddr *target,
                         uint16_t identifier, uint16_t sequence, const void *payload, size_t size)
{
    uint16_t sum;
    int is_v6 = target->sa_family == AF_INET6;
    int header = build_ip(buffer, room, source, target, is_v6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP, size + 8, &sum);
    uint8_t *echo = (uint8_t *)buffer + header;
    if (header < 0)
        return -1;
    memset(echo, 0, 8);
    echo[0] = is_v6 ? 128 : 8;
    put16(echo + 4, identifier);
    put16(echo + 6, sequence);
    if (size)
        memcpy(echo + 8, payload, size);
    put16(echo + 2, (uint16_t)~packetrig_checksum_add(is_v6 ? sum : 0, echo, size + 8));
    return header + 8 + (int)size;
}

int packetrig_source_for(const struct sockaddr *target, struct sockaddr_storage *source)
{
    struct sockaddr_storage to;
    socklen_t size = target->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    int fd = socket(target->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    memset(&to, 0, sizeof to);
    memcpy(&to, target, size);
    if (port_of((struct sockaddr *)&to) == 0) /* nothing is sent, but no port is not a port */
        ((struct sockaddr_in *)(void *)&to)->sin_port = htons(9);
    int done = connect(fd, (struct sockaddr *)&to, size);
    if (done == 0)
        done = getsockname(fd, (struct sockaddr *)source, &size);
    int error = errno;
    close(fd);
    errno = error;
    ((struct sockaddr_in *)(void *)source)->sin_port = 0;
    return done;
}
