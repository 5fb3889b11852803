/* A stand-in for a QEMU that makes a thread on command, and prints how long that one waited for its place.
 *
 * Has its main thread and CPU 0/KVM. For each line `CPU [NAME]` on standard input a thread is made, which names itself
 * NAME if there is one, and sleeps until it may run on that CPU alone, which its maker looks for: it may have to wait
 * for that CPU. How long that took, from just before it was made, is printed in nanoseconds; -1 after LONGEST. Dies
 * with its parent.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000L
/* Far beyond any that is placed, also on a machine that stands still for a while. */
#define LONGEST (120 * SECOND)

static atomic_int newborn;
static char name[16];
static int end[2];

static long now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * SECOND + time.tv_nsec;
}

static void *born(void *unused)
{
	char byte;

	if (name[0])
		prctl(PR_SET_NAME, name);
	atomic_store(&newborn, gettid());
	if (read(end[0], &byte, 1) != 1)
		exit(1);
	return unused;
}

static long placed(int tid, int cpu, long begun)
{
	struct timespec pause = {.tv_nsec = 40000};
	cpu_set_t wanted, mask;

	CPU_ZERO(&wanted);
	CPU_SET(cpu, &wanted);
	for (; now() < begun + LONGEST; nanosleep(&pause, NULL))
		if (!sched_getaffinity(tid, sizeof mask, &mask) && CPU_EQUAL(&wanted, &mask))
			return now() - begun;
	return -1;
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
	long begun;
	int tid;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	prctl(PR_SET_TIMERSLACK, 1);
	prctl(PR_SET_NAME, "qemu-system-x86");
	if (pipe(end) || pthread_create(&thread, NULL, asleep, NULL))
		return 1;
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof line, stdin)) {
		line[strcspn(line, "\n")] = 0;
		name[0] = 0;
		if (strchr(line, ' '))
			snprintf(name, sizeof name, "%s", strchr(line, ' ') + 1);
		atomic_store(&newborn, 0);
		begun = now();
		if (pthread_create(&thread, NULL, born, NULL))
			return 1;
		while (!(tid = atomic_load(&newborn)))
			sched_yield();
		printf("%ld\n", placed(tid, atoi(line), begun));
		fflush(stdout);
		if (write(end[1], ".", 1) != 1 || pthread_join(thread, NULL))
			return 1;
	}
	return 0;
}
