/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Runs on frames of the kernel's own ("live frames"): each call writes the next frame of a train, waits for its release time and sends it.
 *
 * A frame that is due later than a call may wait is left: the call ends without it, and user space calls again. layout/train.h states
 * where user space finds all this.
 */
#include "hold.h"

#define FRAMES 512u
#define LONGEST 3300u

struct train {
	u64 next;	/* frames ever sent off; user space reads */
	u64 end;	/* frames to be sent off by the end of this call; user space writes */
	u64 most;	/* ns a frame may wait here */
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
	 * The driver has every earlier frame by now. User space calls once more than there are frames, so that the last one has such a
	 * bound, too.
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
	/* The helper's register must have both bounds: the verifier knows nothing of a number in shared memory. */
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
