/*
 * A wall clock that a test can move or stop, for one redis-server: preloaded, it adds an offset to what the process
 * reads as the time of day, or makes it read the same instant for ever. The file named by WEIR_CLOCK_FILE holds two
 * 8-byte integers, the offset in milliseconds and the instant in microseconds since the epoch, 0 for a clock that
 * runs. It stays mapped, so the test moves the clock of a running server by writing there.
 *
 * The monotonic clocks are left alone, as they are when an operator or NTP steps a machine's time. The real clock is
 * asked by the system call itself: no symbol to look up, so it works however early the process asks.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t *offset_ms, *stopped_us;

__attribute__((constructor)) static void map_clock(void) {
	const char *path = getenv("WEIR_CLOCK_FILE");
	if (path == NULL)
		return;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	void *mapped = mmap(NULL, 2 * sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (mapped != MAP_FAILED) {
		offset_ms = mapped;
		stopped_us = offset_ms + 1;
	}
}

/* Returns the wall clock in nanoseconds, moved; 2^63 ns reach to the year 2262. */
static int64_t moved_ns(clockid_t clock) {
	int64_t us = stopped_us == NULL ? 0 : __atomic_load_n(stopped_us, __ATOMIC_RELAXED);
	if (us != 0)
		return us * 1000;
	struct timespec real;
	if (syscall(SYS_clock_gettime, clock, &real) != 0)
		return -1;
	int64_t ms = offset_ms == NULL ? 0 : __atomic_load_n(offset_ms, __ATOMIC_RELAXED);
	return (int64_t)real.tv_sec * 1000000000 + real.tv_nsec + ms * 1000000;
}

int clock_gettime(clockid_t clock, struct timespec *out) {
	if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)
		return (int)syscall(SYS_clock_gettime, clock, out);
	int64_t ns = moved_ns(clock);
	if (ns < 0)
		return -1;
	out->tv_sec = ns / 1000000000;
	out->tv_nsec = ns % 1000000000;
	return 0;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
	(void)zone; /* Obsolete; redis-server passes NULL. */
	int64_t ns = moved_ns(CLOCK_REALTIME);
	if (ns < 0)
		return -1;
	out->tv_sec = ns / 1000000000;
	out->tv_usec = ns % 1000000000 / 1000;
	return 0;
}

time_t time(time_t *out) {
	int64_t ns = moved_ns(CLOCK_REALTIME);
	time_t seconds = ns < 0 ? -1 : (time_t)(ns / 1000000000);
	if (out != NULL)
		*out = seconds;
	return seconds;
}
