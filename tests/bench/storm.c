/* Makes processes, so many a second: `storm RATE SECONDS exec|fork`. Each ends at once; with `exec` it executes this
 * program before. Or names itself as fast as it can, for RATE of every 100 ms: `storm RATE SECONDS name`. Prints how
 * many there were and how many nanoseconds that took. Dies with its parent.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000L

static long now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * SECOND + time.tv_nsec;
}

static void until(long when)
{
	struct timespec at = {.tv_sec = when / SECOND, .tv_nsec = when % SECOND};

	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
}

/* As a container does that may use a part of a CPU. The names are those of a VMM's thread. */
static long name_for(long busy, long end)
{
	long count = 0;

	for (long next = now(); next < end; next += SECOND / 10, until(next))
		for (; now() < next + busy; count++)
			prctl(PR_SET_NAME, count & 1 ? "vcpu0" : "vcpu1");
	return count;
}

int main(int argc, char **argv)
{
	if (argc < 4)
		return 0;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	signal(SIGCHLD, SIG_IGN);

	long every = SECOND / atol(argv[1]), begin = now(), end = begin + atol(argv[2]) * SECOND, next = begin, count = 0;
	int executes = !strcmp(argv[3], "exec");

	if (!strcmp(argv[3], "name")) {
		count = name_for(atol(argv[1]) * (SECOND / 1000), end);
		end = 0;
	}
	for (; now() < end; count++) {
		if (executes) {
			if (!vfork()) {
				execl("/proc/self/exe", "storm", NULL);
				_exit(1);
			}
		} else if (!fork()) {
			_exit(0);
		}
		next += every;
		if (next > now())
			until(next);
	}
	printf("%ld %ld\n", count, now() - begin);
	return 0;
}
