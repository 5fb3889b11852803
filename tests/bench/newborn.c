/* A stand-in for a QEMU that makes a thread when it is told to, and says how long that one waited for its place.
 *
 * Has the threads `main` and CPU 0/KVM. For each line `CPU [NAME]` on standard input a thread is made, which names
 * itself NAME if there is one, waits until it may run on that CPU alone, and ends. What it waited, from just before it
 * was made, is printed in nanoseconds; -1 after a second. Dies with its parent.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000L

static long begun;
static int cpu;
static char name[16];

static long now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * SECOND + time.tv_nsec;
}

static void *newborn(void *waited)
{
	struct timespec pause = {.tv_nsec = 10000};
	cpu_set_t wanted, mask;

	prctl(PR_SET_TIMERSLACK, 1);
	if (name[0])
		prctl(PR_SET_NAME, name);
	CPU_ZERO(&wanted);
	CPU_SET(cpu, &wanted);
	for (*(long *)waited = -1; now() < begun + SECOND; nanosleep(&pause, NULL)) {
		if (!sched_getaffinity(0, sizeof mask, &mask) && CPU_EQUAL(&wanted, &mask)) {
			*(long *)waited = now() - begun;
			break;
		}
	}
	return NULL;
}

static void *asleep(void *unused)
{
	prctl(PR_SET_NAME, "CPU 0/KVM");
	for (;;)
		pause();
	return unused;
}

int main(void)
{
	pthread_t thread;
	char line[64];
	long waited;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	prctl(PR_SET_NAME, "qemu-system-x86");
	if (pthread_create(&thread, NULL, asleep, NULL))
		return 1;
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof line, stdin)) {
		line[strcspn(line, "\n")] = 0;
		cpu = atoi(line);
		name[0] = 0;
		if (strchr(line, ' '))
			snprintf(name, sizeof name, "%s", strchr(line, ' ') + 1);
		begun = now();
		if (pthread_create(&thread, NULL, newborn, &waited) || pthread_join(thread, NULL))
			return 1;
		printf("%ld\n", waited);
		fflush(stdout);
	}
	return 0;
}
