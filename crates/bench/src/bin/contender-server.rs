//! `tapetum serve` with one worker thread, built beside this program.

use std::process::ExitCode;

use tapetum_bench::contend::contend;
use tapetum_bench::sockets::Sockets;

fn main() -> ExitCode {
    contend(|setup| {
        let binary = std::env::current_exe()?.with_file_name("tapetum");
        let [capacity, memory, tier] =
            [setup.capacity_bytes, setup.memory_bytes, setup.tier_bytes].map(|bytes| bytes.to_string());
        let sync = if setup.sync { "always" } else { "no" };
        let options = ["--threads", "1", "--capacity", &capacity, "--memory", &memory, "--tier", &tier, "--sync", sync];
        Sockets::tapetum(setup, binary, &options)
    })
}
