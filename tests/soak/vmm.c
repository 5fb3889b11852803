/* A stand-in for a VMM that does on command what VMMs do: threads come and go, and it sets masks of its own.
 *
 * Its command line shows what it is (a QEMU, a Firecracker, a virtiofsd, a shim); it makes as many vCPU
 * threads as `-smp N` says. VMM_LISTEN in the environment is a bound socket to listen on: a client that connects then sees
 * that it is this process that listens; who accepts is another matter. Answers each byte on standard input with one on standard output, and ends when that ends:
 *   v  a vCPU more           w  a worker thread more       x  the newest worker less
 *   s  a hundred threads that end at once                  f  ten processes that end at once
 *   m  the main thread lets all other threads run anywhere
 *   b  a vCPU uses 20 ms of CPU time
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST 256

static pthread_t workers[MOST];
static sem_t ends[MOST];
static int worker_count, vcpu_count;
static sem_t burn;

static pthread_attr_t small;
static const char *vcpu_name = "CPU %hu/KVM";

static void *vcpu(void *name)
{
	struct timespec spent;

	pthread_setname_np(pthread_self(), name);
	free(name);
	for (;;) {
		struct timespec from;

		while (sem_wait(&burn))
			;
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
		do
			clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
		while ((spent.tv_sec - from.tv_sec) * 1000000000L + spent.tv_nsec - from.tv_nsec < 20000000L);
	}
	return NULL;
}

static void *worker(void *end)
{
	pthread_setname_np(pthread_self(), "worker");
	while (sem_wait(end))
		;
	return NULL;
}

static void *nothing(void *unused)
{
	return unused;
}

static pthread_t make(void *(*what)(void *), void *with)
{
	pthread_t thread;

	if (pthread_create(&thread, &small, what, with)) {
		perror("pthread_create");
		exit(1);
	}
	return thread;
}

static void add_vcpu(void)
{
	char *name = malloc(16);

	if (!name)
		exit(1);
	snprintf(name, 16, vcpu_name, (unsigned short)vcpu_count++);
	make(vcpu, name);
}

static void storm(void)
{
	for (int round = 0; round < 10; round++) {
		pthread_t made[10];

		for (int at = 0; at < 10; at++)
			made[at] = make(nothing, NULL);
		for (int at = 0; at < 10; at++)
			pthread_join(made[at], NULL);
	}
}

static void fork_some(void)
{
	for (int at = 0; at < 10; at++) {
		pid_t child = fork();

		if (!child) {
			execl("/bin/true", "true", NULL);
			_exit(1);
		}
		if (child > 0)
			waitpid(child, NULL, 0);
	}
}

static void set_masks(void)
{
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *entry;
	cpu_set_t all;

	memset(&all, 0xff, sizeof all);
	while (tasks && (entry = readdir(tasks)))
		if (atoi(entry->d_name) && atoi(entry->d_name) != getpid())
			sched_setaffinity(atoi(entry->d_name), sizeof all, &all);
	if (tasks)
		closedir(tasks);
}

int main(int argc, char **argv)
{
	char command, *listening = getenv("VMM_LISTEN");

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 65536);
	sem_init(&burn, 0, 0);
	if (listening && listen(atoi(listening), 16))
		return 1;
	if (strstr(argv[0], "firecracker"))
		vcpu_name = "fc_vcpu %hu";
	for (int at = 1; at + 1 < argc; at++)
		if (!strcmp(argv[at], "-smp"))
			for (int wanted = atoi(argv[at + 1]); vcpu_count < wanted;)
				add_vcpu();
	while (write(STDOUT_FILENO, ".", 1) == 1 && read(STDIN_FILENO, &command, 1) == 1)
		switch (command) {
		case 'v':
			add_vcpu();
			break;
		case 'w':
			if (worker_count < MOST) {
				sem_init(&ends[worker_count], 0, 0);
				workers[worker_count] = make(worker, &ends[worker_count]);
				worker_count++;
			}
			break;
		case 'x':
			if (worker_count) {
				sem_post(&ends[--worker_count]);
				pthread_join(workers[worker_count], NULL);
			}
			break;
		case 's':
			storm();
			break;
		case 'f':
			fork_some();
			break;
		case 'm':
			set_masks();
			break;
		case 'b':
			sem_post(&burn);
			break;
		}
	return 0;
}
