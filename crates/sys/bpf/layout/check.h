/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The other files of this directory state the offsets, sizes and numbers that programs and user space share. With these
 * macros the compiler compares them with the structures of the programs. build.rs makes Rust constants of the same
 * lines, so both sides cannot disagree.
 */
#pragma once

#define FIELD(type, field, at) _Static_assert(__builtin_offsetof(struct type, field) == (at), #type "." #field);
#define SIZE(type, size) _Static_assert(sizeof(struct type) == (size), "bytes of " #type);
#define NUMBER(name, value) _Static_assert((name) == (value), #name);
#define NUMBER_32(name, value) NUMBER(name, value)
