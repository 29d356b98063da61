/* Stand-in of the fleetctl lab for the NVSwitch fabric manager: starts only beside a driver of its own build. */
#include "driver.h"

#include <time.h>

static void log_line(const char *text)
{
    char stamp[64];
    time_t now = time(NULL);
    FILE *file = fopen("/var/log/fabricmanager.log", "a");

    strftime(stamp, sizeof(stamp), "%b %d %Y %H:%M:%S", localtime(&now));
    if (file != NULL) {
        fprintf(file, "[%s] [ERROR] [tid %d] %s\n", stamp, (int)getpid(), text);
        fclose(file);
    }
    fprintf(stderr, "%s\n", text);
}

int main(int argc, char **argv)
{
    char loaded[64], text[256];

    if (argc > 1 && (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-v") == 0)) {
        printf("Fabric Manager version is : %s\n", VERSION);
        return 0;
    }
    if (!lab_loaded_version(loaded, sizeof(loaded))) {
        log_line("failed to initialize NVSwitch driver interface: NVIDIA driver is not loaded");
        return 1;
    }
    if (strcmp(loaded, VERSION) != 0) {
        snprintf(text, sizeof(text),
                 "fabric manager NVIDIA GPU driver interface version %s don't match with driver version %s. "
                 "Please update with matching NVIDIA driver package.",
                 VERSION, loaded);
        log_line(text);
        return 1;
    }
    if (!lab_has_nvswitch()) {
        log_line("request to query NVSwitch device information from NVSwitch driver failed with "
                 "error:WARNING Nothing to do [NV_WARN_NOTHING_TO_DO]");
        return 1;
    }
    lab_daemon(LAB_FABRIC_PID);
    return 0;
}
