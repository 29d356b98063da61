/* Stand-in of the fleetctl lab for hardware: what its libraries and daemons know of the "kernel" side.
 * The loaded driver is whatever the boot unit presented; nothing here ever changes it. */
#ifndef LAB_DRIVER_H
#define LAB_DRIVER_H

#include <ctype.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LAB_VERSION_FILE "/proc/driver/nvidia/version"
#define LAB_GPUS "/proc/driver/nvidia/gpus"
#define LAB_FABRIC_PID "/run/nvidia-fabricmanager/nv-fabricmanager.pid"
#define LAB_MAX_GPUS 64

/* 1 and the version of the loaded driver, or 0: no driver is loaded. */
static int lab_loaded_version(char *version, size_t size)
{
    char line[512], *word;
    FILE *file = fopen(LAB_VERSION_FILE, "r");

    if (file == NULL)
        return 0;
    if (fgets(line, sizeof(line), file) == NULL)
        line[0] = '\0';
    fclose(file);
    for (word = strtok(line, " \t\n"); word != NULL; word = strtok(NULL, " \t\n")) {
        if (isdigit((unsigned char)word[0]) && strchr(word, '.') != NULL) {
            snprintf(version, size, "%s", word);
            return 1;
        }
    }
    return 0;
}

static int lab_order(const void *left, const void *right)
{
    return strcmp(*(char *const *)left, *(char *const *)right);
}

/* PCI addresses of the GPUs the driver brought up, sorted; how many. */
static inline int lab_gpus(char *addresses[LAB_MAX_GPUS])
{
    int count = 0;
    struct dirent *entry;
    DIR *directory = opendir(LAB_GPUS);

    if (directory == NULL)
        return 0;
    while ((entry = readdir(directory)) != NULL && count < LAB_MAX_GPUS) {
        if (entry->d_name[0] == '.')
            continue;
        addresses[count] = malloc(strlen(entry->d_name) + 1);
        if (addresses[count] == NULL)
            break;
        strcpy(addresses[count++], entry->d_name);
    }
    closedir(directory);
    qsort(addresses, (size_t)count, sizeof(char *), lab_order);
    return count;
}

static inline int lab_has_nvswitch(void)
{
    return access("/dev/nvidia-nvswitchctl", F_OK) == 0;
}

/* Whether the fabric manager that wrote its pid file still runs. */
static inline int lab_fabric_runs(void)
{
    char path[64], name[32] = "";
    int pid = 0;
    FILE *file = fopen(LAB_FABRIC_PID, "r");

    if (file == NULL)
        return 0;
    if (fscanf(file, "%d", &pid) != 1)
        pid = 0;
    fclose(file);
    if (pid <= 0)
        return 0;
    snprintf(path, sizeof(path), "/proc/%d/comm", pid);
    file = fopen(path, "r");
    if (file == NULL)
        return 0;
    if (fgets(name, sizeof(name), file) == NULL)
        name[0] = '\0';
    fclose(file);
    return strncmp(name, "nv-fabricmanage", 15) == 0; /* the kernel keeps 15 characters */
}

/* Leaves the terminal, writes the pid file and sleeps until told to stop. */
static inline void lab_daemon(const char *pid_file)
{
    FILE *file;
    pid_t pid = fork();

    if (pid < 0)
        exit(1);
    if (pid > 0) {
        file = fopen(pid_file, "w");
        if (file != NULL) {
            fprintf(file, "%d\n", (int)pid);
            fclose(file);
        }
        exit(file == NULL);
    }
    setsid();
    if (freopen("/dev/null", "r", stdin) == NULL || freopen("/dev/null", "w", stdout) == NULL)
        exit(1);
    for (;;)
        pause();
}

#endif
