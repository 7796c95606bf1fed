/* What the kernel would put on the wire for a call of sendmsg, derived from the socket at each call. Sockets and
 * options that are not known here are left to the kernel (PASS): it also finds the right errno for wrong calls.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "preload.h"

#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/ip6.h>
#include <linux/if_packet.h>
#include <linux/net_tstamp.h>
#include <string.h>

#ifndef UDP_CORK
#define UDP_CORK 1
#endif
#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef IPV6_HDRINCL
#define IPV6_HDRINCL 36
#endif
#ifndef SOL_PACKET
#define SOL_PACKET 263
#endif

enum { ETHERNET = 14, IPV4 = 20, IPV6 = 40, UDP = 8, ECHO = 8, REALTIME_SOCKETS = 64, PORTLESS_PEERS = 64 };
enum { TYPE_IPV4 = 0x0800, TYPE_IPV6 = 0x86dd };
static const int known_flags = MSG_DONTWAIT | MSG_NOSIGNAL | MSG_CONFIRM | MSG_EOR;
/* SO_TXTIME returns CLOCK_REALTIME for sockets that never set it: these did. */
static uint64_t realtime_sockets[REALTIME_SOCKETS];

/* getpeername knows no peer without a port, which raw sockets and ping sockets have. */
static struct { uint64_t cookie; struct sockaddr_storage peer; } portless_peers[PORTLESS_PEERS];

/* A message with what its socket and its control messages say. */
struct outgoing {
    int fd, domain, type, protocol;
    const struct msghdr *message;
    const struct packetrig_welcome *welcome;
    struct sockaddr_storage target, source;
    int ttl, tos; /* of control messages; -1: the socket's */
};

static int option(int fd, int level, int name, int otherwise)
{
    int value = 0, error = errno;
    socklen_t size = sizeof value;
    if (getsockopt(fd, level, name, &value, &size) < 0)
        value = otherwise;
    errno = error;
    return value;
}

/* Whether an option has a value of any length. */
static int is_set(int fd, int level, int name)
{
    char value[256];
    int error = errno;
    socklen_t size = sizeof value;
    int got = getsockopt(fd, level, name, value, &size);
    errno = error;
    return got == 0 && size > 0;
}

int is_probe_socket(int fd)
{
    int domain = option(fd, SOL_SOCKET, SO_DOMAIN, -1);
    if (domain != AF_INET && domain != AF_INET6 && domain != AF_PACKET)
        return 0;
    int type = option(fd, SOL_SOCKET, SO_TYPE, -1), protocol = option(fd, SOL_SOCKET, SO_PROTOCOL, -1);
    if (type == SOCK_RAW || (domain == AF_PACKET && type == SOCK_DGRAM))
        return 1;
    return type == SOCK_DGRAM &&
           (protocol == IPPROTO_UDP || protocol == (domain == AF_INET ? (int)IPPROTO_ICMP : (int)IPPROTO_ICMPV6));
}

uint64_t socket_cookie(int fd)
{
    uint64_t cookie = 0;
    socklen_t size = sizeof cookie;
    int error = errno;
    if (getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &size) < 0)
        cookie = 0;
    errno = error;
    return cookie;
}

void note_transmit_clock(int fd, int clock)
{
    static unsigned next;
    uint64_t cookie = socket_cookie(fd);
    if (clock == PACKETRIG_REALTIME && cookie)
        realtime_sockets[__atomic_fetch_add(&next, 1, __ATOMIC_RELAXED) % REALTIME_SOCKETS] = cookie;
}

void note_peer(int fd, const struct sockaddr *peer, socklen_t size)
{
    static unsigned next;
    uint64_t cookie = socket_cookie(fd);
    unsigned place = next % PORTLESS_PEERS;
    for (unsigned n = 0; n < PORTLESS_PEERS; n++)
        if (portless_peers[n].cookie == cookie)
            place = n;
    next += place == next % PORTLESS_PEERS;
    memset(&portless_peers[place].peer, 0, sizeof portless_peers[place].peer);
    memcpy(&portless_peers[place].peer, peer, size < sizeof(struct sockaddr_storage) ? size : sizeof(struct sockaddr_storage));
    portless_peers[place].cookie = cookie;
}

static int find_peer(const struct outgoing *out, struct sockaddr_storage *peer)
{
    socklen_t size = sizeof *peer;
    uint64_t cookie = socket_cookie(out->fd);
    if (getpeername(out->fd, (struct sockaddr *)peer, &size) == 0)
        return 0;
    for (unsigned n = 0; cookie && n < PORTLESS_PEERS; n++)
        if (portless_peers[n].cookie == cookie)
            return *peer = portless_peers[n].peer, 0;
    return PASS;
}

/* The next control message, NULL at the end. `is_damaged` (may be NULL): the rest is what the kernel refuses. */
static struct cmsghdr *next_control(const struct msghdr *message, struct cmsghdr *last, int *is_damaged)
{
    uint8_t *begin = message->msg_control, *at = begin;
    if (!begin)
        return NULL;
    if (last)
        at += (size_t)((uint8_t *)last - begin) + CMSG_ALIGN(last->cmsg_len);
    size_t left = message->msg_controllen - (size_t)(at - begin);
    if ((size_t)(at - begin) > message->msg_controllen || left < sizeof(struct cmsghdr))
        return NULL;
    struct cmsghdr *found = (struct cmsghdr *)(void *)at;
    int is_whole = found->cmsg_len >= CMSG_LEN(0) && found->cmsg_len <= left;
    if (is_damaged)
        *is_damaged = !is_whole;
    return is_whole ? found : NULL;
}

int has_transmit_time(const struct msghdr *message)
{
    for (struct cmsghdr *at = next_control(message, NULL, NULL); at; at = next_control(message, at, NULL))
        if (at->cmsg_level == SOL_SOCKET && at->cmsg_type == SCM_TXTIME)
            return 1;
    return 0;
}

static int read_transmit_time(const struct outgoing *out, const struct cmsghdr *control, struct socket_packet *packet)
{
    struct sock_txtime option;
    socklen_t size = sizeof option;
    if (control->cmsg_len < CMSG_LEN(8) || getsockopt(out->fd, SOL_SOCKET, SO_TXTIME, &option, &size) < 0 ||
        (option.flags & SOF_TXTIME_DEADLINE_MODE))
        return PASS;
    int is_realtime = 0;
    for (int n = 0; n < REALTIME_SOCKETS; n++)
        is_realtime |= realtime_sockets[n] == packet->cookie;
    if (option.clockid != PACKETRIG_MONOTONIC && option.clockid != PACKETRIG_TAI && !is_realtime)
        return PASS;
    memcpy(&packet->time, CMSG_DATA(control), 8);
    packet->has_time = 1;
    packet->clock = (int)option.clockid;
    return 0;
}

/* Sets the source from IP_PKTINFO or IPV6_PKTINFO. */
static int read_packet_info(struct outgoing *out, const struct cmsghdr *control)
{
    struct in_pktinfo v4;
    struct in6_pktinfo v6;
    if (control->cmsg_level == IPPROTO_IP) {
        if (control->cmsg_len < CMSG_LEN(sizeof v4) || out->domain != AF_INET)
            return PASS;
        memcpy(&v4, CMSG_DATA(control), sizeof v4);
        if (v4.ipi_ifindex && (unsigned)v4.ipi_ifindex != out->welcome->interface_index)
            return PASS;
        if (v4.ipi_spec_dst.s_addr)
            ((struct sockaddr_in *)(void *)&out->source)->sin_addr = v4.ipi_spec_dst;
        return 0;
    }
    if (control->cmsg_len < CMSG_LEN(sizeof v6) || out->domain != AF_INET6)
        return PASS;
    memcpy(&v6, CMSG_DATA(control), sizeof v6);
    if (v6.ipi6_ifindex && v6.ipi6_ifindex != out->welcome->interface_index)
        return PASS;
    if (!IN6_IS_ADDR_UNSPECIFIED(&v6.ipi6_addr))
        ((struct sockaddr_in6 *)(void *)&out->source)->sin6_addr = v6.ipi6_addr;
    return 0;
}

static int read_controls(struct outgoing *out, struct socket_packet *packet)
{
    int is_damaged = 0;
    struct cmsghdr *at = NULL;
    while ((at = next_control(out->message, at, &is_damaged))) {
        int done = PASS, value = -1;
        int is_v4 = at->cmsg_level == IPPROTO_IP, is_v6 = at->cmsg_level == IPPROTO_IPV6;
        if (at->cmsg_len >= CMSG_LEN(sizeof value))
            memcpy(&value, CMSG_DATA(at), sizeof value);
        else if (at->cmsg_len >= CMSG_LEN(1))
            value = *CMSG_DATA(at);
        if (at->cmsg_level == SOL_SOCKET && at->cmsg_type == SCM_TXTIME)
            done = read_transmit_time(out, at, packet);
        else if ((is_v4 && at->cmsg_type == IP_PKTINFO) || (is_v6 && at->cmsg_type == IPV6_PKTINFO))
            done = read_packet_info(out, at);
        else if ((is_v4 && at->cmsg_type == IP_TTL) || (is_v6 && at->cmsg_type == IPV6_HOPLIMIT))
            done = (out->ttl = value) > 0 && value < 256 ? 0 : PASS;
        else if ((is_v4 && at->cmsg_type == IP_TOS) || (is_v6 && at->cmsg_type == IPV6_TCLASS))
            done = (out->tos = value) >= 0 && value < 256 ? 0 : PASS;
        if (done)
            return done;
    }
    return is_damaged ? PASS : 0;
}

/* Copies the program's bytes to `at`; their number, or PASS if there is no room. */
static ssize_t gather(const struct msghdr *message, uint8_t *at, size_t room)
{
    size_t size = 0;
    for (size_t n = 0; n < (size_t)message->msg_iovlen; n++) {
        size_t length = message->msg_iov[n].iov_len;
        if (length > room - size)
            return PASS;
        if (length)
            memcpy(at + size, message->msg_iov[n].iov_base, length);
        size += length;
    }
    return (ssize_t)size;
}

/* An IPv4 address in an IPv6 one becomes IPv4. */
static void unmap(struct sockaddr_storage *address)
{
    struct sockaddr_in6 v6;
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    memcpy(&v6, address, sizeof v6);
    if (v6.sin6_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr))
        return;
    v4.sin_port = v6.sin6_port;
    memcpy(&v4.sin_addr, &v6.sin6_addr.s6_addr[12], 4);
    memcpy(address, &v4, sizeof v4);
}

/* Whether an address is one host behind the service's interface, as far as it can be seen from the address. */
static int is_one_host(const struct sockaddr_storage *address, uint32_t interface_index)
{
    if (address->ss_family == AF_INET) {
        uint32_t ip = ntohl(((const struct sockaddr_in *)(const void *)address)->sin_addr.s_addr);
        return ip != 0 && ip >> 24 != 127 && ip < 0xe0000000u;
    }
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)address;
    return !IN6_IS_ADDR_UNSPECIFIED(&v6->sin6_addr) && !IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr) &&
           !IN6_IS_ADDR_MULTICAST(&v6->sin6_addr) && (!v6->sin6_scope_id || v6->sin6_scope_id == interface_index);
}

static int find_target(struct outgoing *out)
{
    socklen_t needed = out->domain == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    if (out->message->msg_name) {
        if (out->message->msg_namelen < needed)
            return PASS;
        memcpy(&out->target, out->message->msg_name, needed);
    } else if (find_peer(out, &out->target)) {
        return PASS;
    }
    if (out->target.ss_family != out->domain)
        return PASS;
    unmap(&out->target);
    if (out->target.ss_family != out->domain &&
        (out->protocol != IPPROTO_UDP || out->type == SOCK_RAW || option(out->fd, IPPROTO_IPV6, IPV6_V6ONLY, 1)))
        return PASS;
    return is_one_host(&out->target, out->welcome->interface_index) ? 0 : PASS;
}

static int is_any(const struct sockaddr_storage *address)
{
    return address->ss_family == AF_INET
               ? !((const struct sockaddr_in *)(const void *)address)->sin_addr.s_addr
               : IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)(const void *)address)->sin6_addr);
}

/* The source of the socket, with its port; a port is bound as the kernel would do. */
static int find_source(struct outgoing *out)
{
    struct sockaddr_storage any, local;
    socklen_t size = sizeof local;
    memset(&local, 0, sizeof local);
    if (getsockname(out->fd, (struct sockaddr *)&local, &size) < 0 || local.ss_family != out->domain)
        return PASS;
    if (out->type == SOCK_DGRAM && !((struct sockaddr_in *)(void *)&local)->sin_port) {
        memset(&any, 0, sizeof any);
        any.ss_family = (sa_family_t)out->domain;
        if (bind(out->fd, (struct sockaddr *)&any, size) < 0 ||
            getsockname(out->fd, (struct sockaddr *)&local, &size) < 0)
            return PASS;
    }
    out->source = local;
    return 0;
}

/* Without a bound address the kernel's route gives one; control messages have come in between. */
static int complete_source(struct outgoing *out)
{
    struct sockaddr_storage found;
    in_port_t port = ((struct sockaddr_in *)(void *)&out->source)->sin_port;
    if (out->source.ss_family == AF_INET6 && out->target.ss_family == AF_INET) {
        if (is_any(&out->source)) { /* of no family yet */
            memset(&out->source, 0, sizeof out->source);
            out->source.ss_family = AF_INET;
        } else {
            unmap(&out->source);
        }
    }
    if (out->source.ss_family != out->target.ss_family)
        return PASS;
    if (is_any(&out->source)) {
        if (packetrig_source_for((struct sockaddr *)&out->target, &found) < 0)
            return PASS;
        out->source = found;
    }
    ((struct sockaddr_in *)(void *)&out->source)->sin_port = port;
    return 0;
}

static void put16(uint8_t *at, size_t value) { at[0] = (uint8_t)(value >> 8), at[1] = (uint8_t)value; }
static size_t get16(const uint8_t *at) { return (size_t)at[0] << 8 | at[1]; }

static void complete_ipv4(uint8_t *ip, size_t size)
{
    put16(ip + 2, size);
    put16(ip + 10, 0);
    put16(ip + 10, (uint16_t)~packetrig_checksum_add(0, ip, IPV4));
}

static uint16_t next_identifier(void)
{
    static uint16_t identifier;
    return ++identifier ? identifier : ++identifier;
}

static void write_ipv4(const struct outgoing *out, uint8_t *ip, size_t size)
{
    int discover = option(out->fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_WANT);
    int is_whole = discover == IP_PMTUDISC_WANT || discover == IP_PMTUDISC_DO || discover == IP_PMTUDISC_PROBE;
    memset(ip, 0, IPV4);
    ip[0] = 0x45;
    ip[1] = (uint8_t)(out->tos >= 0 ? out->tos : option(out->fd, IPPROTO_IP, IP_TOS, 0));
    put16(ip + 4, is_whole ? 0 : next_identifier());
    ip[6] = is_whole ? 0x40 : 0;
    ip[8] = (uint8_t)(out->ttl > 0 ? out->ttl : option(out->fd, IPPROTO_IP, IP_TTL, 64));
    ip[9] = (uint8_t)out->protocol;
    memcpy(ip + 12, &((const struct sockaddr_in *)(const void *)&out->source)->sin_addr, 4);
    memcpy(ip + 16, &((const struct sockaddr_in *)(const void *)&out->target)->sin_addr, 4);
    complete_ipv4(ip, size);
}

static void write_ipv6(const struct outgoing *out, uint8_t *ip, size_t size)
{
    int class = out->tos >= 0 ? out->tos : option(out->fd, IPPROTO_IPV6, IPV6_TCLASS, 0);
    memset(ip, 0, IPV6);
    ip[0] = (uint8_t)(0x60 | (class >> 4 & 15));
    ip[1] = (uint8_t)(class << 4);
    put16(ip + 4, size - IPV6);
    ip[6] = (uint8_t)out->protocol;
    ip[7] = (uint8_t)(out->ttl > 0 ? out->ttl : option(out->fd, IPPROTO_IPV6, IPV6_UNICAST_HOPS, 64));
    memcpy(ip + 8, &((const struct sockaddr_in6 *)(const void *)&out->source)->sin6_addr, 16);
    memcpy(ip + 24, &((const struct sockaddr_in6 *)(const void *)&out->target)->sin6_addr, 16);
}

/* The checksum of what is behind the IP header of `ip`, with the addresses, unless it is ICMP's of IPv4. */
static uint16_t transport_checksum(const uint8_t *ip, size_t header, size_t size, int protocol)
{
    uint8_t rest[4] = {0, (uint8_t)protocol, 0, 0};
    size_t length = size - header, addresses = header == IPV6 ? 32 : 8;
    uint16_t sum = 0;
    put16(rest + 2, length);
    if (protocol != IPPROTO_ICMP) {
        sum = packetrig_checksum_add(sum, ip + header - addresses, addresses);
        sum = packetrig_checksum_add(sum, rest, 4);
    }
    return (uint16_t)~packetrig_checksum_add(sum, ip + header, length);
}

/* Completes what follows the IP header as the kernel does for this socket. */
static int write_transport(const struct outgoing *out, uint8_t *ip, size_t header, size_t size)
{
    uint8_t *at = ip + header;
    in_port_t port = ((const struct sockaddr_in *)(const void *)&out->source)->sin_port;
    size_t length = size - header;
    if (out->type == SOCK_DGRAM && out->protocol == IPPROTO_UDP) {
        memcpy(at, &port, 2);
        memcpy(at + 2, &((const struct sockaddr_in *)(const void *)&out->target)->sin_port, 2);
        put16(at + 4, length);
        put16(at + 6, 0);
        uint16_t sum = transport_checksum(ip, header, size, IPPROTO_UDP);
        put16(at + 6, sum ? sum : 0xffff);
        return ((const struct sockaddr_in *)(const void *)&out->target)->sin_port ? 0 : PASS;
    }
    if (out->type == SOCK_DGRAM) { /* a ping socket: its port is the identifier */
        if (length < ECHO || at[0] != (out->protocol == IPPROTO_ICMP ? 8 : 128) || at[1])
            return PASS;
        put16(at + 2, 0);
        memcpy(at + 4, &port, 2);
        put16(at + 2, transport_checksum(ip, header, size, out->protocol));
        return 0;
    }
    int offset = header == IPV6 ? option(out->fd, IPPROTO_IPV6, IPV6_CHECKSUM, -1) : -1;
    if (offset >= 0) {
        if ((size_t)offset + 2 > length)
            return PASS;
        put16(at + offset, 0);
        uint16_t sum = transport_checksum(ip, header, size, out->protocol);
        put16(at + offset, sum ? sum : 0xffff);
    }
    return 0;
}

/* A packet with the program's own IP header. */
static int complete_own_header(struct outgoing *out, struct socket_packet *packet)
{
    uint8_t *ip = packet->bytes;
    int is_v6 = out->domain == AF_INET6;
    if (packet->size < (size_t)(is_v6 ? IPV6 : IPV4) || (!is_v6 && ip[0] != 0x45) || (is_v6 && ip[0] >> 4 != 6))
        return PASS;
    if (is_v6)
        return memcmp(ip + 24, &((struct sockaddr_in6 *)(void *)&out->target)->sin6_addr, 16) ? PASS : 0;
    if (memcmp(ip + 16, &((struct sockaddr_in *)(void *)&out->target)->sin_addr, 4) || (get16(ip + 6) & 0x3fff))
        return PASS;
    if (!memcmp(ip + 12, "\0\0\0\0", 4)) {
        if (complete_source(out))
            return PASS;
        memcpy(ip + 12, &((struct sockaddr_in *)(void *)&out->source)->sin_addr, 4);
    }
    if (!get16(ip + 4) && !(ip[6] & 0x40))
        put16(ip + 4, next_identifier());
    complete_ipv4(ip, packet->size);
    return 0;
}

/* Options whose effect is not known here. */
static int has_unknown_options(const struct outgoing *out)
{
    static const int of_ipv6[] = {IPV6_RTHDR, IPV6_HOPOPTS, IPV6_DSTOPTS, IPV6_RTHDRDSTOPTS};
    char device[IF_NAMESIZE] = "";
    socklen_t size = sizeof device;
    if (getsockopt(out->fd, SOL_SOCKET, SO_BINDTODEVICE, device, &size) == 0 && device[0] &&
        strncmp(device, out->welcome->interface_name, sizeof device))
        return 1;
    if (out->domain == AF_INET && is_set(out->fd, IPPROTO_IP, IP_OPTIONS))
        return 1;
    for (size_t n = 0; out->domain == AF_INET6 && n < sizeof of_ipv6 / sizeof *of_ipv6; n++)
        if (is_set(out->fd, IPPROTO_IPV6, of_ipv6[n]))
            return 1;
    return out->type == SOCK_DGRAM && out->protocol == IPPROTO_UDP &&
           (option(out->fd, IPPROTO_UDP, UDP_CORK, 0) || option(out->fd, IPPROTO_UDP, UDP_SEGMENT, 0));
}

static int build_ip(struct outgoing *out, struct socket_packet *packet)
{
    packet->kind = PACKETRIG_IP;
    if (find_target(out) || has_unknown_options(out) || find_source(out) || read_controls(out, packet))
        return PASS;
    int is_own = out->type == SOCK_RAW &&
                 (out->protocol == IPPROTO_RAW || (out->domain == AF_INET
                      ? option(out->fd, IPPROTO_IP, IP_HDRINCL, 0) : option(out->fd, IPPROTO_IPV6, IPV6_HDRINCL, 0)));
    size_t header = out->target.ss_family == AF_INET ? IPV4 : IPV6;
    size_t before = is_own ? 0 : header + (out->type == SOCK_DGRAM && out->protocol == IPPROTO_UDP ? UDP : 0);
    size_t room = out->welcome->mtu > before ? out->welcome->mtu - before : 0;
    ssize_t payload = gather(out->message, packet->bytes + before, room);
    if (payload < 0 || before + (size_t)payload <= header)
        return PASS;
    packet->payload = (size_t)payload;
    packet->size = before + (size_t)payload;
    if (is_own)
        return complete_own_header(out, packet);
    if (complete_source(out))
        return PASS;
    if (header == IPV4)
        write_ipv4(out, packet->bytes, packet->size);
    else
        write_ipv6(out, packet->bytes, packet->size);
    return write_transport(out, packet->bytes, header, packet->size);
}

/* A frame of a packet socket at the service's interface. */
static int build_frame(struct outgoing *out, struct socket_packet *packet)
{
    struct sockaddr_ll to;
    socklen_t size = sizeof to;
    size_t before = out->type == SOCK_DGRAM ? ETHERNET : 0;
    memset(&to, 0, sizeof to);
    if (out->message->msg_name && out->message->msg_namelen >= offsetof(struct sockaddr_ll, sll_addr) + 6)
        memcpy(&to, out->message->msg_name, out->message->msg_namelen < size ? out->message->msg_namelen : size);
    else if (out->message->msg_name || before || getsockname(out->fd, (struct sockaddr *)&to, &size) < 0)
        return PASS;
    packet->kind = PACKETRIG_FRAME;
    if (to.sll_ifindex != (int)out->welcome->interface_index || option(out->fd, SOL_PACKET, PACKET_VNET_HDR, 0) ||
        read_controls(out, packet))
        return PASS;
    ssize_t payload = gather(out->message, packet->bytes + before, out->welcome->mtu + ETHERNET - before);
    if (payload < 0 || before + (size_t)payload < ETHERNET + IPV4)
        return PASS;
    packet->payload = (size_t)payload;
    packet->size = before + (size_t)payload;
    if (before) {
        memcpy(packet->bytes, to.sll_addr, 6);
        memcpy(packet->bytes + 6, out->welcome->mac, 6);
        put16(packet->bytes + 12, ntohs(to.sll_protocol));
    }
    size_t type = get16(packet->bytes + 12);
    return packet->bytes[0] & 1 || (type != TYPE_IPV4 && (type != TYPE_IPV6 || packet->size < ETHERNET + IPV6)) ? PASS : 0;
}

static void note_target(struct socket_packet *packet)
{
    const uint8_t *ip = packet->bytes + (packet->kind == PACKETRIG_FRAME ? ETHERNET : 0);
    memset(packet->target, 0, 16);
    if (ip[0] >> 4 == 6) {
        memcpy(packet->target, ip + 24, 16);
    } else {
        packet->target[10] = packet->target[11] = 0xff;
        memcpy(packet->target + 12, ip + 16, 4);
    }
}

int build_socket_packet(int fd, const struct msghdr *message, int flags, const struct packetrig_welcome *welcome,
                        struct socket_packet *packet)
{
    struct outgoing out = {.fd = fd, .message = message, .welcome = welcome, .ttl = -1, .tos = -1};
    out.domain = option(fd, SOL_SOCKET, SO_DOMAIN, -1);
    out.type = option(fd, SOL_SOCKET, SO_TYPE, -1);
    out.protocol = option(fd, SOL_SOCKET, SO_PROTOCOL, -1);
    packet->has_time = 0;
    packet->cookie = socket_cookie(fd);
    if (flags & ~known_flags || welcome->mtu + ETHERNET > sizeof packet->bytes)
        return PASS;
    int built = out.domain == AF_PACKET ? build_frame(&out, packet) : build_ip(&out, packet);
    if (built)
        return built;
    note_target(packet);
    /* An error that an earlier packet caused is reported by the next call, and then gone. */
    int error = option(fd, SOL_SOCKET, SO_ERROR, 0);
    return error ? (errno = error, -1) : 0;
}
