// Which hosts a launch has: a file's, or those of the Slurm allocation around it.
#include "cli/launch.h"
#include "operate/slurm.h"
#include <stdlib.h>

static const char *lookup(const char *name, void *context) {
    (void)context;
    return getenv(name);
}

int launch_hosts(struct launch_options *o, struct hosts *hosts, bool *given, bool *slurm,
                 struct err *err) {
    struct slurm_job job;
    *given = *slurm = false;
    if (o->hosts) {
        if (hosts_read(hosts, o->hosts, err) != 0 || hosts_resolve(hosts, o->hosts, err) != 0)
            return -1;
        *given = true;
        return 0;
    }
    if (slurm_read(&job, lookup, NULL, err) != 0) return -1;
    if (!job.inside) return 0;
    *hosts = job.hosts; // now the caller's
    *given = *slurm = true;
    if (o->spares == 0) o->spares = slurm_spares(hosts, o->ranks);
    return 0;
}
