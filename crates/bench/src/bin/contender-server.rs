//! `tapetum serve`, built beside this program.

use std::process::ExitCode;

use tapetum_bench::contend::contend;
use tapetum_bench::sockets::Sockets;

fn main() -> ExitCode {
    contend(|setup| {
        let binary = std::env::current_exe()?.with_file_name("tapetum");
        let [threads, capacity, memory, tier] =
            [setup.threads, setup.capacity_bytes, setup.memory_bytes, setup.tier_bytes]
                .map(|number| number.to_string());
        let sync = if setup.sync { "always" } else { "no" };
        let options =
            ["--threads", &threads, "--capacity", &capacity, "--memory", &memory, "--tier", &tier, "--sync", sync];
        match setup.export_bytes {
            0 => Sockets::tapetum(setup, binary, &options),
            _ => Sockets::exporting(setup, binary, &options),
        }
    })
}
