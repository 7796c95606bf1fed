/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Runs on frames that the kernel makes itself ("live frames"): each call writes the next frame of a train, waits for
 * its release time and sends it.
 *
 * If the frame is due later than a call may wait, the call sends nothing; user space runs the program again.
 * layout/train.h states the offsets that user space uses.
 */
#include "hold.h"

#define FRAMES 512u
#define LONGEST 3300u

struct train {
	u64 next;	/* frames sent or failed so far; user space reads it */
	u64 end;	/* the value of `next` at which calls send no more; user space writes it */
	u64 most;	/* longest wait for a frame's release time, ns */
	u64 failed;	/* frames that could not be made */
	u32 ifindex, pad0;
	u64 pad[507];
	struct slot slots[SLOTS];
};

struct frame {
	u64 at;
	u32 len, pad;
	u8 bytes[4080];
};

MAP(train);
MAP(frames);

SEC("xdp")
int send_off(struct xdp_md *ctx)
{
	u32 zero = 0;
	struct train *t = bpf_map_lookup_elem(&train, &zero);
	if (!t)
		return XDP_DROP;
	u64 next = t->next, now = bpf_ktime_get_ns(), gaps = 0;
	struct slot *slot = &t->slots[next & (SLOTS - 1)];
	/*
	 * The driver has every earlier frame by now, so this time is the latest at which the frame before was handed
	 * over. User space makes one call more than there are frames, so that the last frame has such a bound, too.
	 */
	slot->entered = now;
	if (next >= READ_ONCE(t->end))
		return XDP_DROP;
	u32 which = next & (FRAMES - 1);
	struct frame *frame_of = bpf_map_lookup_elem(&frames, &which);
	if (!frame_of)
		return XDP_DROP;
	u64 at = frame_of->at;
	if (at > now + t->most)
		return XDP_DROP;
	slot->at = at;
	u32 len = frame_of->len;
	int change = (int)len - (int)(ctx->data_end - ctx->data);
	/*
	 * The verifier knows nothing about a number from shared memory, so it must see both bounds of the register
	 * that the helper gets.
	 */
	if (len > LONGEST)
		len = 0;
	PIN(len);
	if (len == 0 || len > LONGEST || (change && bpf_xdp_adjust_tail(ctx, change)) ||
	    bpf_xdp_store_bytes(ctx, 0, frame_of->bytes, len)) {
		t->failed += 1;
		slot->released = 0;
		PUBLISH(t->next, 1);
		return XDP_DROP;
	}
	now = hold(at, now, &gaps);
	slot->released = now;
	slot->gaps = gaps;
	slot->left = bpf_ktime_get_ns();
	PUBLISH(t->next, 1);
	return bpf_redirect(t->ifindex, 0);
}

#include "layout/train.h"

char licence[] SEC("license") = "Dual BSD/GPL";
