/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Receives: copies every frame, with its arrival time, into a ring (rings.h).
 * A filter is a separate program that runs first and calls this one for the frames that pass.
 */
#include "rings.h"

MAP(settings);
MAP(rings);

SEC("xdp")
int receive(struct xdp_md *ctx)
{
	u32 cpu = bpf_get_smp_processor_id(), zero = 0;
	struct ring *ring = bpf_map_lookup_elem(&rings, &cpu);
	struct settings *s = bpf_map_lookup_elem(&settings, &zero);
	if (!ring || !s)
		return XDP_PASS;
	put_frame(ctx, ring, s, bpf_ktime_get_ns());
	return answer(ctx, s);
}

char licence[] SEC("license") = "Dual BSD/GPL";
