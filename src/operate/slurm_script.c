// The batch script: what of it is Slurm's (allocation, signals), and what follows from the status
// with which `weft launch` leaves.
#include "operate/slurm.h"

static int put_head(struct text *t, const struct slurm_script *s, int nodes) {
    int failed =
        text_printf(t,
                    "#!/bin/bash\n"
                    "# A training run that goes on by itself: made by weft launch --emit-sbatch. "
                    "Add what your\n"
                    "# site wants (--partition, --account, --mem), then: sbatch THIS_FILE\n"
                    "#SBATCH --job-name=%s\n"
                    "#SBATCH --nodes=%d\n",
                    s->name, nodes + s->spares);
    if (s->spares > 0)
        failed |=
            text_printf(t, "# %d of them needed, %d waiting to take the place of one that fails\n",
                        nodes, s->spares);
    failed |= text_printf(t, "#SBATCH --ntasks-per-node=%d\n", s->ranks_per_node);
    if (s->cores_per_rank > 0)
        failed |= text_printf(t, "#SBATCH --cpus-per-task=%d\n", s->cores_per_rank);
    if (s->time_limit) failed |= text_printf(t, "#SBATCH --time=%s\n", s->time_limit);
    failed |= text_printf(
        t,
        "# The job outlives a node that fails; nodes of one switch are waited for, ten minutes at "
        "most.\n"
        "#SBATCH --no-kill\n"
        "#SBATCH --switches=1@10:00\n"
        "# It may be put back into the queue, and goes on in the same log.\n"
        "#SBATCH --requeue\n"
        "#SBATCH --open-mode=append\n"
        "#SBATCH --output=%s-%%j.log\n"
        "# So long before the time limit (or a preemption that asks first) it saves and leaves.\n"
        "#SBATCH --signal=B:USR1@%d\n\n",
        s->name, s->grace_seconds);
    return failed;
}

// Slurm's signals go to this shell alone, and end its `wait`.
static const char catch_signals[] = "launch=\n"
                                    "trap '[ -z \"$launch\" ] || kill -USR1 $launch' USR1\n"
                                    "trap '[ -z \"$launch\" ] || kill -TERM $launch' TERM\n";

static const char wait_for_end[] =
    "launch=$!\n"
    "while :; do\n"
    "    wait $launch\n"
    "    status=$?\n"
    "    kill -0 $launch 2>/dev/null || break # else a signal ended the wait alone\n"
    "done\n\n";

static const char follow_status[] =
    "# 75: all is saved, start it again. 76: no healthy node is left; again, on other nodes. Both\n"
    "# keep nodes away that were found bad, now or before, and those of --exclude. Everything "
    "else\n"
    "# is for a person to look at.\n"
    "case $status in\n"
    "75 | 76)\n"
    "    trap '' TERM # Slurm ends this script when the job is requeued\n"
    "    bad=\n"
    "    [ ! -s \"$evicted\" ] || bad=$(sort -u \"$evicted\" | paste -sd, -)\n"
    "    if [ -n \"$bad\" ]; then\n"
    "        away=$(scontrol -o show job \"$SLURM_JOB_ID\" | tr ' ' '\\n' | sed -n "
    "'s/^ExcNodeList=//p')\n"
    "        case $away in '' | '(null)') ;; *) bad=$away,$bad ;; esac\n"
    "        scontrol requeuehold \"$SLURM_JOB_ID\" &&\n"
    "            scontrol update JobId=\"$SLURM_JOB_ID\" ExcNodeList=\"$bad\"\n"
    "        scontrol release \"$SLURM_JOB_ID\"\n"
    "    else\n"
    "        scontrol requeue \"$SLURM_JOB_ID\"\n"
    "    fi\n"
    "    ;;\n"
    "esac\n"
    "exit $status\n";

int slurm_emit(const struct slurm_script *s, struct text *out, struct err *err) {
    if (s->ranks_per_node < 1 || s->ranks < 1)
        return err_set(err, ERR_USAGE, "a batch script needs the number of ranks, and of a node");
    int nodes = (s->ranks + s->ranks_per_node - 1) / s->ranks_per_node;
    int failed = put_head(out, s, nodes);
    failed |= text_puts(out, "evicted=") | text_put_word(out, s->run_folder) |
              text_puts(out, "/launch/evicted\n");
    failed |=
        text_puts(out, "# Steps that mpirun makes leave room for others, and outlive a node.\n"
                       "export OMPI_MCA_plm_slurm_args=\"--overlap --no-kill --mem=0\"\n");
    failed |= text_puts(out, catch_signals) | text_put_word(out, s->program) |
              text_printf(out, " launch -n %d --spares %d", s->ranks, s->spares);
    for (int i = 0; s->words[i]; i++)
        failed |= text_puts(out, " ") | text_put_word(out, s->words[i]);
    failed |= text_puts(out, " &\n") | text_puts(out, wait_for_end) | text_puts(out, follow_status);
    return failed ? err_set(err, ERR_MEMORY, "no memory for a batch script") : 0;
}
