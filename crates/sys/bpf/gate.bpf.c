/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Runs at an interface's egress: holds each frame of one socket until the release time that the frame carries.
 *
 * The frame is built, routed and allocated by then; only the driver is left. The program runs within the sender's call,
 * with bottom halves off, so it must not hold a frame for long: a frame that is due in more than `most` ns leaves at
 * once, and its slot says so. Frames of other sockets pass unchanged.
 */
#include "hold.h"

struct gate {
	u64 cookie;	/* the socket whose frames are held */
	u64 most;	/* longest time for which a frame is held, ns */
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
	/*
	 * While a frame is held, nothing else runs on this processor. So a frame that is far too early leaves at once,
	 * marked by a release time of 0.
	 */
	if (at > now + gate_of->most)
		at = 0;
	slot->at = at;
	now = hold(at, now, &gaps);
	slot->released = now;
	slot->gaps = gaps;
	/*
	 * Clears the release time. Otherwise a queueing discipline that follows (fq, etf) would delay or drop
	 * the frame, and the other end of a veth pair would take the clock of the release time for that of
	 * the arrival timestamp. The helper clears time and clock, but only of IP packets; of other frames
	 * only the time is cleared.
	 */
	if (bpf_skb_set_tstamp(skb, 0, 0))
		skb->tstamp = 0;
	slot->left = bpf_ktime_get_ns();
	PUBLISH(gate_of->passed, 1);
	return NEXT;
}

#include "layout/gate.h"

char licence[] SEC("license") = "Dual BSD/GPL";
