/* Stand-in of the fleetctl lab for the persistence daemon. */
#include "driver.h"

int main(int argc, char **argv)
{
    char loaded[64];

    if (argc > 1 && (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-v") == 0)) {
        printf("nvidia-persistenced:  version %s\n", VERSION);
        return 0;
    }
    if (!lab_loaded_version(loaded, sizeof(loaded)) || access("/dev/nvidiactl", F_OK) != 0) {
        fprintf(stderr, "nvidia-persistenced failed to initialize. Check syslog for more details.\n"
                        "Failed to query NVIDIA devices. Please ensure that the NVIDIA device files (/dev/nvidia*) exist.\n");
        return 1;
    }
    lab_daemon("/run/nvidia-persistenced/nvidia-persistenced.pid");
    return 0;
}
