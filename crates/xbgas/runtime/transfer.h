/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Strided transfers of elements of 1, 2, 4, 8 or 16 bytes; internal to the library. */
#ifndef XBRTIME_TRANSFER_H
#define XBRTIME_TRANSFER_H

#include <stddef.h>

/* To dest on an element, from src here. The stride is in elements. */
void xbrtime_put_bytes(void *dest, const void *src, size_t size, size_t nelems, int stride,
		       int pe);
/* To dest here, from src on an element. */
void xbrtime_get_bytes(void *dest, const void *src, size_t size, size_t nelems, int stride,
		       int pe);

#endif
