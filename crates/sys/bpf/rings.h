/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Rings into which programs put what arrives, for user space to map. One ring per processor, because a processor runs one
 * instance of a program at a time: each ring has one writer and one reader.
 *
 * What finds no room is counted, never waited for. Whether frames go on to the kernel's stack is a setting.
 * layout/rings.h states where user space finds all this.
 */
#pragma once
#include "kernel.h"

#define RING_BYTES (16u << 20)
#define LONGEST 9600u

struct ring {
	u64 written;	/* bytes ever written; the writer's */
	u64 dropped;	/* frames, for want of room */
	u64 pad0[6];
	u64 read;	/* bytes ever read; the reader's */
	u64 pad1[503];
	u8 data[RING_BYTES + 16384]; /* a record may run over the end: nothing wraps inside */
};

struct record {
	u64 time;	/* CLOCK_MONOTONIC, ns */
	u32 full_len;	/* as it came */
	u32 len;	/* as it is here; with HEADER, it is no frame but what was read of one */
};

#define HEADER 0x80000000u

struct settings {
	u32 snap;	/* bytes of a frame to keep at most */
	u32 answer;	/* what becomes of a frame afterwards; BY_KIND: what neighbours say goes on */
};

#define BY_KIND 255u

#include "layout/rings.h"

#define LEVEL(at)									\
	do {										\
		u32 type = (u32)head[at] << 8 | head[(at) + 1];				\
		if (type == 0x0806)							\
			return XDP_PASS;						\
		if (type == 0x0800)							\
			return head[(at) + 11] == 1 ? XDP_PASS : XDP_DROP;		\
		if (type == 0x86dd)							\
			return head[(at) + 8] == 58 ? XDP_PASS : XDP_DROP;		\
		if (type != 0x8100 && type != 0x88a8 && type != 0x9100 &&		\
		    type != 0x9200 && type != 0x9300)					\
			return XDP_DROP;						\
	} while (0)

/* ARP, ICMP and ICMPv6, behind at most four VLAN tags, go on. */
INLINE int by_kind(struct xdp_md *ctx)
{
	/* To the IPv4 protocol behind four tags. The shortest ARP frame has 42 bytes (a virtual cable does not pad). */
	u8 head[40];
	if (bpf_xdp_load_bytes(ctx, 0, head, sizeof(head)))
		return XDP_DROP;
	LEVEL(12);
	LEVEL(16);
	LEVEL(20);
	LEVEL(24);
	LEVEL(28);
	return XDP_DROP;
}

INLINE int answer(struct xdp_md *ctx, const struct settings *s)
{
	return UNLIKELY(s->answer == BY_KIND) ? by_kind(ctx) : (int)s->answer;
}

/* Room for a record with this many bytes; none if the reader is behind. */
INLINE struct record *room(struct ring *ring, u32 len)
{
	u64 written = ring->written;
	u64 need = sizeof(struct record) + ((len + 7u) & ~7u);
	/* An old value of `read` only makes the ring look fuller. What is written below depends on it, so it cannot come before it. */
	if (UNLIKELY(written + need - READ_ONCE(ring->read) > RING_BYTES)) {
		ring->dropped += 1;
		return 0;
	}
	/* `written` is a multiple of 8. The mask shows the verifier that the record begins inside; it may end in the spare bytes behind. */
	return (void *)(ring->data + (written & (RING_BYTES - 8)));
}

/* Puts the first bytes of a frame into a ring, as many as the settings say. */
INLINE void put_frame(struct xdp_md *ctx, struct ring *ring, const struct settings *s, u64 now)
{
	u32 full = bpf_xdp_get_buff_len(ctx);
	u32 len = full;
	if (len > s->snap)
		len = s->snap;
	if (len > LONGEST)
		len = LONGEST;
	struct record *record = room(ring, len);
	if (!record)
		return;
	record->time = now;
	record->full_len = full;
	record->len = len;
	/* The verifier must see the bound of this very register: clang would otherwise use one that it has not followed. */
	PIN(len);
	u8 *bytes = (void *)(record + 1);
	if ((len < 8 || len > SHORT || !READ_SHORT(ctx, len, bytes)) && len > 0)
		bpf_xdp_load_bytes(ctx, 0, bytes, len);
	PUBLISH(ring->written, sizeof(struct record) + ((len + 7u) & ~7u));
}
