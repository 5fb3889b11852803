/* Gives a QEMU threads that look like the kernel's vhost workers, on machines without /dev/vhost-*.
 *
 * Preloaded (LD_PRELOAD) with VHOST_SHIM=N it starts N io_uring pollers: like vhost workers since Linux 6.4 they
 * are made by the kernel (PF_USER_WORKER), live in QEMU's thread group, inherit its mask and can be pinned. Only
 * their name has to be changed. Where io_uring is forbidden (containers) they are plain threads of that name.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static char name[16];

static void *plain_thread(void *unused)
{
    prctl(PR_SET_NAME, name);
    for (;;)
        pause();
    return unused;
}

/* Renames every poller that has its own name by now; a thread's comm can be written from its thread group. */
static int rename_pollers(void)
{
    char path[300], comm[17];
    int renamed = 0;
    struct dirent *entry;
    DIR *tasks = opendir("/proc/self/task");

    while (tasks && (entry = readdir(tasks))) {
        snprintf(path, sizeof(path), "/proc/self/task/%s/comm", entry->d_name);
        int fd = open(path, O_RDWR | O_CLOEXEC);
        if (fd < 0)
            continue;
        ssize_t length = read(fd, comm, sizeof(comm) - 1);
        comm[length > 0 ? length : 0] = 0;
        if (!strncmp(comm, "iou-sqp", 7) && write(fd, name, strlen(name)) > 0)
            renamed++;
        close(fd);
    }
    if (tasks)
        closedir(tasks);
    return renamed;
}

__attribute__((constructor)) static void start(void)
{
    const char *wanted = getenv("VHOST_SHIM");
    int pollers = 0;

    snprintf(name, sizeof(name), "vhost-%d", getpid());
    for (int left = wanted ? atoi(wanted) : 0; left > 0; left--) {
        struct io_uring_params params = {.flags = IORING_SETUP_SQPOLL, .sq_thread_idle = 1};
        pthread_t thread;

        if (syscall(SYS_io_uring_setup, 1, &params) >= 0)
            pollers++;
        else if (pthread_create(&thread, NULL, plain_thread, NULL) == 0)
            pthread_detach(thread);
    }
    /* A poller names itself when it first runs, which is later than io_uring_setup returns. */
    for (int tries = 0; pollers > 0 && tries < 2000; tries++) {
        pollers -= rename_pollers();
        usleep(1000);
    }
}
