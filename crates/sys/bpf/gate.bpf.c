/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * At an interface's egress: holds each frame of one socket back until the release time it carries, then lets it go on.
 *
 * The frame is built, routed and allocated by then; what is left is the driver. It runs where the sender's call runs, with bottom
 * halves off, so it never holds longer than it was told to: a frame that is due later goes at once, and the slot says so.
 * Frames of others pass untouched.
 */
#include "hold.h"

struct gate {
	u64 cookie;	/* the socket whose frames are held */
	u64 most;	/* ns a frame may be held */
	u64 passed;	/* frames of the socket so far */
	u64 pad[509];
	struct slot slots[SLOTS];
};

/* Only the offset of `tstamp` counts (linux/bpf.h): the verifier translates accesses to the context by their offsets. */
struct __sk_buff {
	u8 before[152];
	u64 tstamp;
};

static u64 (*bpf_get_socket_cookie)(void *ctx) = (void *)46;
static long (*bpf_skb_set_tstamp)(void *ctx, u64 at, u32 clock) = (void *)192;

MAP(gate);

#define NEXT (-1)

SEC("tc")
int hold_back(struct __sk_buff *skb)
{
	u32 zero = 0;
	struct gate *gate_of = bpf_map_lookup_elem(&gate, &zero);
	if (!gate_of || bpf_get_socket_cookie(skb) != gate_of->cookie)
		return NEXT;
	u64 at = skb->tstamp, now = bpf_ktime_get_ns(), gaps = 0;
	struct slot *slot = &gate_of->slots[gate_of->passed & (SLOTS - 1)];
	slot->entered = now;
	/* Nothing else runs on this processor meanwhile: a frame that is far too early goes at once, marked by a zero. */
	if (at > now + gate_of->most)
		at = 0;
	slot->at = at;
	now = hold(at, now, &gaps);
	slot->released = now;
	slot->gaps = gaps;
	/*
	 * Clears the release time. A queueing discipline behind (fq, etf) would delay or drop the frame by it, and the far end of a
	 * virtual cable would take its clock for that of an arrival stamp. The helper clears time and clock, but of IP packets only.
	 */
	if (bpf_skb_set_tstamp(skb, 0, 0))
		skb->tstamp = 0;
	slot->left = bpf_ktime_get_ns();
	PUBLISH(gate_of->passed, 1);
	return NEXT;
}

#include "layout/gate.h"

char licence[] SEC("license") = "Dual BSD/GPL";
