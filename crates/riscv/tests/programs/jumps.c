/* Non-local jumps, function pointers, variable arguments, computed goto, thread-local data. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static jmp_buf back;
static __thread int own = 5;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_barrier_t barrier;
static int results[4];

static long add(int count, ...)
{
	va_list list;
	long sum = 0;
	va_start(list, count);
	for (int i = 0; i < count; i++)
		sum += i % 2 ? (long)va_arg(list, double) : va_arg(list, long);
	va_end(list);
	return sum;
}

static void descend(int depth)
{
	volatile char space[100];
	memset((char *)space, depth, sizeof space);
	if (depth == 0)
		longjmp(back, space[5] + 42);
	descend(depth - 1);
}

static void first(void)
{
	puts("once");
}

static void *work(void *number)
{
	int i = (int)(long)number;
	pthread_once(&once, first);
	own += i;
	pthread_barrier_wait(&barrier);
	results[i] = own;
	return NULL;
}

static int interpret(const char *code)
{
	static void *labels[] = {&&plus, &&twice, &&minus};
	int value = 1;
next:
	if (!*code)
		return value;
	goto *labels[*code++ - '0'];
plus:
	value += 3;
	goto next;
twice:
	value *= 2;
	goto next;
minus:
	value = -value;
	goto next;
}

static void bye(void)
{
	puts("bye");
}

int main(void)
{
	atexit(bye);
	int value = setjmp(back);
	if (!value)
		descend(50);
	printf("%d %ld %d\n", value, add(5, 1L, 2.5, 3L, 4.5, 5L), interpret("01101201"));
	pthread_t threads[4];
	pthread_barrier_init(&barrier, NULL, 4);
	for (long i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, work, (void *)i);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	printf("%d %d %d %d %d\n", own, results[0], results[1], results[2], results[3]);
	exit(9);
}
