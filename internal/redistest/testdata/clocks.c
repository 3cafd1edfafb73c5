/* Prints in nanoseconds what this process reads from each clock: monotonic, then the four ways to the wall clock. */
#include <stdio.h>
#include <sys/time.h>
#include <time.h>

static long long ns(struct timespec t) { return t.tv_sec * 1000000000LL + t.tv_nsec; }

int main(void) {
	struct timespec monotonic, realtime, coarse;
	struct timeval day;
	clock_gettime(CLOCK_MONOTONIC, &monotonic);
	clock_gettime(CLOCK_REALTIME, &realtime);
	clock_gettime(CLOCK_REALTIME_COARSE, &coarse);
	gettimeofday(&day, NULL);
	printf("%lld %lld %lld %lld %lld\n", ns(monotonic), ns(realtime), ns(coarse),
	       day.tv_sec * 1000000000LL + day.tv_usec * 1000LL, time(NULL) * 1000000000LL);
	return 0;
}
