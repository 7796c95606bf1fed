/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Rings into which the programs write received frames, and which user space maps. There is one ring per processor,
 * because a processor runs one instance of a program at a time: so each ring has one writer and one reader.
 *
 * A frame that finds its ring full is counted and not written; the program never waits. A setting says whether frames
 * continue to the kernel's network stack. layout/rings.h states the offsets that user space uses.
 */
#pragma once
#include "kernel.h"

#define RING_BYTES (16u << 20)
#define LONGEST 9600u

struct ring {
	u64 written;	/* bytes written so far; only the program writes it */
	u64 dropped;	/* frames that found the ring full */
	u64 pad0[6];
	u64 read;	/* bytes read so far; only user space writes it */
	u64 pad1[503];
	u8 data[RING_BYTES + 16384]; /* a record may continue behind RING_BYTES: no record wraps */
};

struct record {
	u64 time;	/* CLOCK_MONOTONIC, ns */
	u32 full_len;	/* length of the received frame, bytes */
	u32 len;	/* bytes that follow: of the frame or, with the bit HEADER, of a parsed header */
};

#define HEADER 0x80000000u

struct settings {
	u32 snap;	/* maximum number of bytes of a frame to write */
	u32 answer;	/* XDP action for a frame after it was written; with BY_KIND, by_kind decides */
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

/* Passes ARP, ICMP and ICMPv6, behind at most four VLAN tags, to the kernel's stack. Drops all other frames. */
INLINE int by_kind(struct xdp_md *ctx)
{
	/* Ends after the IPv4 protocol behind four tags. Even an unpadded ARP frame (veth) is longer: 42 bytes. */
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

/* Returns the place of a record with `len` bytes; zero if the ring is full, which counts as a drop. */
INLINE struct record *room(struct ring *ring, u32 len)
{
	u64 written = ring->written;
	u64 need = sizeof(struct record) + ((len + 7u) & ~7u);
	/*
	 * An old value of `read` only makes the ring look fuller than it is. The record is written only if this
	 * comparison permits it, so no write can come before the load.
	 */
	if (UNLIKELY(written + need - READ_ONCE(ring->read) > RING_BYTES)) {
		ring->dropped += 1;
		return 0;
	}
	/*
	 * `written` is a multiple of 8. The mask shows the verifier that the record begins inside the ring; it may end
	 * in the spare bytes behind the ring.
	 */
	return (void *)(ring->data + (written & (RING_BYTES - 8)));
}

/* Writes the first bytes of a frame into a ring: at most `snap`, and at most LONGEST. */
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
	/*
	 * The verifier must see the bound of this very register: otherwise clang uses a copy, whose bound the
	 * verifier does not know.
	 */
	PIN(len);
	u8 *bytes = (void *)(record + 1);
	if ((len < 8 || len > SHORT || !READ_SHORT(ctx, len, bytes)) && len > 0)
		bpf_xdp_load_bytes(ctx, 0, bytes, len);
	PUBLISH(ring->written, sizeof(struct record) + ((len + 7u) & ~7u));
}
