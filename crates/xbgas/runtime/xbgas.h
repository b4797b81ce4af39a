/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Extended instructions of xBGAS for compilers that do not know them, by .insn.
 *
 * XBGAS_DIALECT chooses the encoding: 2018 (default), 20 (specification 2.0) or 2024 (its
 * revision). Compilers do not know extended registers, so each macro that needs one sets it.
 * The macros use e10 and e11; nothing else may rely on their values.
 */
#ifndef XBGAS_H
#define XBGAS_H

#include <stdint.h>

#ifndef XBGAS_DIALECT
#define XBGAS_DIALECT 2018
#endif

#if XBGAS_DIALECT == 2018
#define XBGAS_EADDIE_FUNCT3 "7"
#elif XBGAS_DIALECT == 20 || XBGAS_DIALECT == 2024
#define XBGAS_EADDIE_FUNCT3 "5"
#else
#error "XBGAS_DIALECT is 2018, 20 or 2024"
#endif

/* A note in the program says which encoding it has: name "xBGAS", type 1, XBGAS_DIALECT. */
#define XBGAS_TEXT_OF(number) #number
#define XBGAS_TEXT(number) XBGAS_TEXT_OF(number)
__asm__(".pushsection .note.xbgas, \"a\", @note\n\t"
	".balign 4\n\t.4byte 6, 4, 1\n\t.asciz \"xBGAS\"\n\t.balign 4\n\t"
	".4byte " XBGAS_TEXT(XBGAS_DIALECT) "\n\t.popsection");

/* Assembly of eaddie e10, reg, 0; and of raw accesses to (e10, address). */
#define XBGAS_SET_E10(reg) ".insn i 0x7b, " XBGAS_EADDIE_FUNCT3 ", x10, " reg ", 0\n\t"
#define XBGAS_RAW_LOAD(funct3, to, address) \
	".insn r 0x33, " funct3 ", 0x55, " to ", " address ", x10\n\t"
#define XBGAS_RAW_STORE(funct3, value, address) \
	".insn r 0x33, " funct3 ", 0x22, " value ", " address ", x10\n\t"

/* Sets e10 to an object id, for the raw accesses that follow in the same function. */
static inline void xbgas_set_object(uint64_t object)
{
	__asm__ volatile(XBGAS_SET_E10("%0") : : "r"(object) : "memory");
}

/* eaddi of e10: the object id that it holds. */
static inline uint64_t xbgas_get_object(void)
{
	uint64_t object;
	__asm__ volatile(".insn i 0x7b, 6, %0, x10, 0" : "=r"(object));
	return object;
}

/* xbgas_load_TYPE(object, address), xbgas_store_TYPE(object, address, value): one access. */
#define XBGAS_DEFINE_ACCESS(name, type, load3, store3)                              \
	static inline type xbgas_load_##name(uint64_t object, const void *address)  \
	{                                                                           \
		uint64_t value;                                                     \
		__asm__ volatile(XBGAS_SET_E10("%1")                                \
				 XBGAS_RAW_LOAD(load3, "%0", "%2")                  \
				 : "=&r"(value)                                     \
				 : "r"(object), "r"(address)                        \
				 : "memory");                                       \
		return (type)value;                                                 \
	}                                                                           \
	static inline void xbgas_store_##name(uint64_t object, void *address,       \
					      type value)                           \
	{                                                                           \
		__asm__ volatile(XBGAS_SET_E10("%0")                                \
				 XBGAS_RAW_STORE(store3, "%2", "%1")                \
				 : : "r"(object), "r"(address),                     \
				 "r"((uint64_t)value) : "memory");                  \
	}

XBGAS_DEFINE_ACCESS(i8, int8_t, "0", "0")
XBGAS_DEFINE_ACCESS(i16, int16_t, "1", "1")
XBGAS_DEFINE_ACCESS(i32, int32_t, "2", "2")
XBGAS_DEFINE_ACCESS(i64, int64_t, "3", "3")
XBGAS_DEFINE_ACCESS(u8, uint8_t, "4", "0")
XBGAS_DEFINE_ACCESS(u16, uint16_t, "5", "1")

/* Operations of xbgas_atomic32 and 64, by their funct7. */
#define XBGAS_ADD 0
#define XBGAS_XOR 1
#define XBGAS_AND 2
#define XBGAS_OR 3
#define XBGAS_MIN 4
#define XBGAS_MAX 5
#define XBGAS_COMPARE_SWAP 6

#if XBGAS_DIALECT == 2018
/* Assembly of an atomic on the address in x11, extended by e11; x12 holds what a swap expects. */
#define XBGAS_ATOMIC(funct3, funct7) ".insn r 0x6b, " funct3 ", " funct7 ", x12, x11, %1"
#define XBGAS_CASE(operation, funct3)                                               \
	case operation:                                                             \
		__asm__ volatile(XBGAS_ATOMIC(funct3, XBGAS_TEXT(operation))        \
				 : "+r"(old) : "r"(operand), "r"(at) : "memory");   \
		break;
/* Atomics: signed, and the old value is sign-extended. */
#define XBGAS_DEFINE_ATOMIC(name, funct3)                                           \
	static inline int64_t name(uint64_t object, void *address, int operation,   \
				   uint64_t operand, uint64_t expected)             \
	{                                                                           \
		register void *at __asm__("x11") = address;                         \
		register uint64_t old __asm__("x12") = expected;                    \
		__asm__ volatile(".insn i 0x7b, " XBGAS_EADDIE_FUNCT3               \
				 ", x11, %0, 0" : : "r"(object) : "memory");        \
		switch (operation) {                                                \
		XBGAS_CASE(XBGAS_ADD, funct3)                                       \
		XBGAS_CASE(XBGAS_XOR, funct3)                                       \
		XBGAS_CASE(XBGAS_AND, funct3)                                       \
		XBGAS_CASE(XBGAS_OR, funct3)                                        \
		XBGAS_CASE(XBGAS_MIN, funct3)                                       \
		XBGAS_CASE(XBGAS_MAX, funct3)                                       \
		XBGAS_CASE(XBGAS_COMPARE_SWAP, funct3)                              \
		}                                                                   \
		return (int64_t)old;                                                \
	}
XBGAS_DEFINE_ATOMIC(xbgas_atomic32, "6")
XBGAS_DEFINE_ATOMIC(xbgas_atomic64, "7")
#else
/* These dialects have no atomics; never called. */
static inline int64_t xbgas_atomic32(uint64_t object, void *address, int operation,
				     uint64_t operand, uint64_t expected)
{
	(void)object, (void)address, (void)operation, (void)operand, (void)expected;
	return 0;
}
#define xbgas_atomic64 xbgas_atomic32
#endif

#if XBGAS_DIALECT == 2024
/* ebld and ebsd: nelems of 8 bytes, stride elements apart on both sides. */
static inline void xbgas_ebld(uint64_t object, void *dest, const void *src, uint64_t nelems,
			      int64_t stride)
{
	register void *to __asm__("x11") = dest;
	__asm__ volatile(".insn i 0x7b, 5, x11, %0, 0\n\t"
			 ".insn r4 0x5b, 3, 0, %1, %2, %3, %4"
			 : : "r"(object), "r"(to), "r"(src), "r"(nelems), "r"(stride)
			 : "memory");
}

static inline void xbgas_ebsd(uint64_t object, void *dest, const void *src, uint64_t nelems,
			      int64_t stride)
{
	register void *to __asm__("x11") = dest;
	__asm__ volatile(".insn i 0x7b, 5, x11, %0, 0\n\t"
			 ".insn r4 0x5b, 3, 1, %1, %2, %3, %4"
			 : : "r"(object), "r"(to), "r"(src), "r"(nelems), "r"(stride)
			 : "memory");
}
#endif

/* eld and esd: the address in x11, extended by e11. */
static inline uint64_t xbgas_eld(uint64_t object, const void *address)
{
	register const void *at __asm__("x11") = address;
	uint64_t value;
	__asm__ volatile(".insn i 0x7b, " XBGAS_EADDIE_FUNCT3 ", x11, %1, 0\n\t"
			 ".insn i 0x77, 3, %0, 0(%2)"
			 : "=&r"(value) : "r"(object), "r"(at) : "memory");
	return value;
}

static inline void xbgas_esd(uint64_t object, void *address, uint64_t value)
{
	register void *at __asm__("x11") = address;
	__asm__ volatile(".insn i 0x7b, " XBGAS_EADDIE_FUNCT3 ", x11, %0, 0\n\t"
			 ".insn s 0x7b, 3, %2, 0(%1)"
			 : : "r"(object), "r"(at), "r"(value) : "memory");
}

#endif
