/* Stand-in of the fleetctl lab for the persistence daemon: talks to the driver through the installed libraries, so
 * that it fails beside a driver of another version, whatever its own is. */
#include "driver.h"

static int libraries_match(const char *loaded)
{
    char target[128], *version;
    ssize_t length = readlink(LIBRARIES "/libnvidia-ml.so.1", target, sizeof(target) - 1);

    if (length < 0)
        return 0;
    target[length] = '\0';
    version = strstr(target, ".so.");
    return version != NULL && strcmp(version + 4, loaded) == 0;
}

int main(int argc, char **argv)
{
    char loaded[64];

    if (argc > 1 && (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-v") == 0)) {
        printf("nvidia-persistenced:  version %s\n", VERSION);
        return 0;
    }
    if (!lab_loaded_version(loaded, sizeof(loaded)) || access("/dev/nvidiactl", F_OK) != 0 ||
        !libraries_match(loaded)) {
        fprintf(stderr, "nvidia-persistenced failed to initialize. Check syslog for more details.\n"
                        "Failed to query NVIDIA devices. Please ensure that the NVIDIA device files (/dev/nvidia*) exist.\n");
        return 1;
    }
    lab_daemon("/run/nvidia-persistenced/nvidia-persistenced.pid");
    return 0;
}
