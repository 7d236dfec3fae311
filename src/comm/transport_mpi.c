#include "comm/transport.h"
bool transport_mpi_built(void) {
    return false;
}
const char *transport_mpi_library(void) {
    return "none";
}
void transport_mpi_abort(int status) {
    (void)status;
}
int transport_open_mpi(struct transport **out, const struct comm_options *options,
                       struct err *err) {
    (void)out, (void)options;
    return err_set(err, ERR_USAGE,
                   "this program was built without MPI: it runs as one process; build with "
                   "-DWEFT_MPI=openmpi or mpich");
}
