//! `cargo x COMMAND`: the commands of make and CI. Most of it drives the built binaries from outside, over loopback,
//! as a user would; figures that are not about sockets embed the store. Nothing here is linked into it.

// A driver of real processes measures real time and waits for it; the bans of clippy.toml are for code that the
// simulator must own.
#![allow(clippy::disallowed_methods)]

mod arguments;
mod bench;
mod damage;
mod demo;
mod depot;
mod device;
mod differential;
#[cfg(test)]
mod documents;
mod environment;
mod exporter;
mod figures;
mod fuzz;
mod kill;
mod load;
mod loop_device;
mod memccapable;
mod mutants;
mod nbd;
mod nightly;
mod package;
mod power_cut;
mod python;
mod results;
#[cfg(test)]
mod roles;
#[cfg(test)]
mod rooms_tests;
mod row;
mod rows;
mod test_times;
mod udp;
mod workspace;

use std::process::ExitCode;

use arguments::{Arguments, Mode};

const USAGE: &str = "\
cargo x COMMAND [--option value]...

Tests (each builds what it needs, starts its own server on a free loopback port and stops it):
  test-flight        ADBC, pyarrow and DuckDB against the server's Flight door            [--only NAME]
  test-console       the console in headless Chromium, and requests of its own kind without it   [--only NAME] [--pictures FOLDER: those of the documents, too]
  test-clients       pymemcache, python-binary-memcached and pylibmc against the server   [--only NAME]
  test-backups       backups and standbys in object storage, on good days and bad   [--only NAME] [--s3-server FILE: versitygw, in the place of moto]
  test-python        the Python package under pytest   [--only PATTERN] [--server FILE] [--library FILE: its native half, built already]
  test-system        the server on file systems, limits, clocks and signals as they occur; some as root   [--only NAME]
  test-package       the Debian package in a fresh root, as root: installed, used, upgraded, removed, purged
                     [--package FILE: one of cargo x package, in the place of one of the tested binary]
  test-docs          the programs of README, MANUAL, OPERATING, QUERIES, BLOCK-DEVICE, PYTHON, MANY-NODES and COMING-FROM as they stand, each twice in one folder
                     [--only NAME] [--library FILE, as above]
  test-dashboards    the dashboard and the alerts of packaging, under Prometheus, of a server that is used at every door   [--only NAME]
  test-memccapable   memccapable of libmemcached-tools: 54 of 54
  test-differential  the same bytes to memcached and to the server, replies compared      [--only PATTERN]
  test-udp           hostile datagrams: silence, or little for little   [--datagrams 1000000] [--seed N]
  test-nbd           block devices: nbdcopy, qemu-io and the like; libnbd; random requests; a thousand clients; kill -9, under a file system too
                     [--operations 100000] [--cycles 10] [--seed N] [--clients 1000] [--pause-ms 0]
                     [--file-system ext4|xfs: that alone, by nbdfuse and a loop device, as root]
  test-kill          kill -9 under load, restart, verify   [--cycles 30] [--seed N] [--connections 8]
  test-kill-members  the same over three members with a parity, of which one is taken away   [as above]
  test-kill-drive    the same with the drive in a process of its own: either side, or both   [as above]
  test-power-cut     the same on a file system that loses what was not synced   [--cycles 30] [--seed N] [--connections 8]
  test-device        kill -9 of a store on a loop device, as root   [--cycles 30] [--seed N] [--connections 8]
  test-damage        blocks of a store's file damaged, every key read   [--blocks 10000] [--seed N] [--first N] [--index hashed|ordered]
  test-rows          every bench, figures and the demo below, once, as small as can be: they end   [--only NAME,NAME]
  test-times         what each part of the last `make test` took   [--into docs/TESTING.md]
By option (see docs/TESTING.md):
  test-image         the image for containers, unpacked, without a runtime, as root   [--server FILE: a static binary] [--package FILE] [--only NAME]
  test-wheel         the wheel of cargo x package as pip installs it, then as test-python  [--only PATTERN] [--server FILE] [--package FILE]
  test-exporter      memcached's exporter for Prometheus reads memcached and the server; needs Go
  try-depot          a place of backups, a folder or s3://…, keeps what backups rely on   --at PLACE [--objects 100]
  test-mutants       the code that durability rests on, changed a little: a test must fail   [--only FILE] [--shard 0/8]
By option, on nightly:
  test-asan          the tests of kernels, drive, store and server under AddressSanitizer   [--only NAME]
  fuzz               every target in turn   [--runs 3000000] [--only NAME]
  fuzz-corpus        what was found, as few inputs as reach the same code, into fuzz/corpus   [--only NAME]
Figures (release build; see docs/BENCHMARKS.md):
  figures NAME       console | drive-process-link | drive-process-work | flash-reads | memory-peak | growth-latency | restart | warm; all: these
                     index-scale | ordered-operations | ordered-space | overwrites: alone, they take longer
Packages (see docs/OPERATING.md; into target/packages):
  package            [deb|static|image|wheel]... of one static binary; all, if none is named
                     [--binary FILE: that one, built already] [--profile quick] [--revision 1] [--compression 6] [--into DIR]
Beside the rivals and the disk's limit, in turns (see docs/BENCHMARKS.md; --contenders a,b --keep DIR --items N):
  bench ROW          block (block devices, as root; --device SIZE --depths 4,32 --throttle no) | quick | cold-get | ycsb | ycsb-a | read-latency | load | blocking-get | memcached-get | delta-lookup |
                     misses | dram-get | idle-export | latency | latency-by-load | extstore | packets | floods | ordered | ordered-scan |
                     ordered-threads | ordered-ablation | filter-scan | filter-scan-json | fields-get | graph | transfer | walk | drive-thread | drive-process |
                     dispatch | snappy-table | two-applications: the drive's computing, without the store |
                     trees: another tree, by --other DIR
  bench keep ROW     takes what the row left in the target folder into docs/figures   [--as NAME]
  bench report       makes the tables and pictures of docs/BENCHMARKS.md of what is kept
  bench-python images  pictures loaded for training, beside loaders of Python: --rows small,large,stages,trainer,sizes,weights,sides --contenders a,b --size smallest
                     --rivals all (torch, DALI: gigabytes)

Side by side:
  demo               Tapetum and memcached with extstore loaded, killed, restarted   [--items N] [--value BYTES]
                     [--memory SIZE] [--flash SIZE] [--rate N] [--load-rate BYTES] [--picture FILE]

Tests of a server, figures over sockets and the demo take --server PATH to drive another binary: a tapetum, or memcached
for the tests it can pass.";

pub use tapetum_bench::Failure;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[String]) -> Result<(), Failure> {
    let Some((command, rest)) = words.split_first() else {
        return Err(USAGE.into());
    };
    dispatch(command, rest, row::mode)
}

/// `mode` finds the purpose of a row's run in its words.
fn dispatch(command: &str, rest: &[String], mode: fn(&[String]) -> Result<Mode, Failure>) -> Result<(), Failure> {
    let options = |words: &[String]| match mode(words)? {
        Mode::Smoke { .. } => Err(format!("{command} has no smoke run").into()),
        mode => Arguments::parse(words, mode),
    };
    let asks_for_help = |word: &str| matches!(word, "help" | "--help" | "-h");
    if asks_for_help(command) || rest.first().is_some_and(|word| asks_for_help(word)) {
        println!("{USAGE}");
        return Ok(());
    }
    match command {
        "test-clients" => python::clients(&options(rest)?),
        "test-backups" => python::backups(&options(rest)?),
        "test-flight" => python::flight(&options(rest)?),
        "test-console" => python::console(&options(rest)?),
        "test-python" => python::package(&options(rest)?),
        "test-wheel" => python::wheel(&options(rest)?),
        "test-system" => python::system(&options(rest)?),
        "test-package" => python::debian(&options(rest)?),
        "test-image" => python::image(&options(rest)?),
        "test-docs" => python::documents(&options(rest)?),
        "test-dashboards" => python::dashboards(&options(rest)?),
        "test-differential" => differential::run(&options(rest)?),
        "test-memccapable" => memccapable::run(&options(rest)?),
        "try-depot" => depot::run(&options(rest)?),
        "test-damage" => damage::run(&options(rest)?),
        "test-device" => device::run(&options(rest)?),
        "test-kill" => kill::run(&options(rest)?),
        "test-kill-members" => kill::run_members(&options(rest)?),
        "test-kill-drive" => kill::run_either_side(&options(rest)?),
        "test-nbd" => nbd::run(&options(rest)?),
        "test-udp" => udp::run(&options(rest)?),
        "test-power-cut" => power_cut::run(&options(rest)?),
        "test-exporter" => exporter::run(&options(rest)?),
        "test-mutants" => mutants::run(&options(rest)?),
        "test-asan" => nightly::test_asan(&options(rest)?),
        "fuzz" => fuzz::run(&options(rest)?),
        "fuzz-corpus" => fuzz::minimize(&options(rest)?),
        "package" => {
            let kinds = rest.iter().take_while(|word| !word.starts_with("--")).count();
            let (kinds, rest) = rest.split_at(kinds);
            package::run(kinds, &options(rest)?)
        }
        "test-rows" => rows::test(&options(rest)?),
        "test-times" => test_times::run(&options(rest)?),
        "demo" => demo::run(rest, mode(rest)?),
        "figures" => {
            let Some((name, rest)) = rest.split_first() else {
                return Err(format!("figures needs a name\n\n{USAGE}").into());
            };
            figures::run(name, rest, mode(rest)?)
        }
        "bench" => {
            let Some((name, rest)) = rest.split_first() else {
                return Err(format!("bench needs a row\n\n{USAGE}").into());
            };
            bench::run(name, rest, mode(rest)?)
        }
        "bench-python" => {
            let (name, rest) = rest.split_first().ok_or("bench-python needs a row: images")?;
            bench::images::run(name, &options(rest)?)
        }
        other => Err(format!("there is no command {other}\n\n{USAGE}").into()),
    }
}
