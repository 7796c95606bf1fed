/* Parts of libpacketrig_sendto.so.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#ifndef PACKETRIG_PRELOAD_H
#define PACKETRIG_PRELOAD_H

#include "packetrig_release.h"

#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

enum { PASS = -2 }; /* the real function has to do it; -1 is an error with errno */

/* A packet as it has to leave. */
struct socket_packet {
    uint8_t kind;        /* PACKETRIG_FRAME or PACKETRIG_IP */
    int has_time, clock; /* from SCM_TXTIME and SO_TXTIME */
    uint64_t time;
    uint64_t cookie;    /* of the socket: the kernel gives no other socket the same */
    uint8_t target[16]; /* an IPv6 address, or ::ffff:a.b.c.d */
    size_t payload;     /* bytes that the program sent */
    size_t size;
    uint8_t bytes[65536];
};

/* socket_packet.c: what the kernel would put on the wire. */
int is_probe_socket(int fd);
int has_transmit_time(const struct msghdr *message);
int build_socket_packet(int fd, const struct msghdr *message, int flags, const struct packetrig_welcome *welcome,
                        struct socket_packet *packet); /* 0, PASS or -1 */
uint64_t socket_cookie(int fd);
void note_transmit_clock(int fd, int clock); /* SO_TXTIME was set */
void note_peer(int fd, const struct sockaddr *peer, socklen_t size);     /* it was connected; under the lock */

/* schedule.c: when packets without a time leave. */
struct schedule {
    uint64_t every, ahead; /* nanoseconds; every 0: there is none */
    enum { PER_TARGET, PER_SOCKET, PER_PROGRAM } per;
};
int parse_schedule(const char *text, struct schedule *schedule); /* 0, -1 */
/* Takes the next time of the series that the packet belongs to. */
uint64_t take_slot(const struct schedule *schedule, const struct socket_packet *packet, uint64_t now, uint64_t lead);

/* handover.c: the connection, and what becomes of packets. */
int wants_packets(void);                                                 /* whether there is a schedule */
ssize_t hand_over(int fd, const struct msghdr *message, int flags);      /* bytes, PASS or -1 */
void note_connected(int fd, const struct sockaddr *peer, socklen_t size);
void connect_early(void);                                                /* while the program has its rights */
void finish_handover(void);                                              /* before the program ends */
void say_once(unsigned topic, const char *text);

/* packetrig_sendto.c: the functions of libc behind ours. The C client is compiled to call the first two. */
int packetrig_real_connect(int fd, const struct sockaddr *peer, socklen_t size);
ssize_t packetrig_real_send(int fd, const void *bytes, size_t size, int flags);
ssize_t packetrig_real_write(int fd, const void *bytes, size_t size);

#endif
