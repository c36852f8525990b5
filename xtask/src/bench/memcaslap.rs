//! memcaslap, from Debian's libmemcached-tools, as a client that nobody here wrote: one thread of it against `tapetum serve`, and
//! against memcached, in turns. It stores its own items and asks for those, so each server begins a turn with nothing.

use std::path::Path;
use std::process::Command;

use tapetum_bench::client::Connection;
use tapetum_bench::server::ServerOptions;

use super::outcome::{Outcome, Reach};
use super::series::Spread;
use crate::Failure;
use crate::arguments::Arguments;
use crate::workspace;

const CONNECTIONS: &str = "64";
/// What the store may have: little beside what comes in a turn, so that most of what is asked for is on flash.
const SERVER: [&str; 7] = ["--threads", "1", "--memory", "64MiB", "--sync", "no", "--capacity"];

/// What one turn gave.
struct Turn {
    operations_per_second: f64,
    /// Of the gets, those that were answered from flash; none of memcached's are.
    flash_share: f64,
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let rounds = arguments.number("rounds", 5)?;
    let seconds = arguments.number("seconds", 8)?;
    let value_bytes = arguments.number("value", 1008)?;
    let set_percent = arguments.number("set-percent", 50)?;
    arguments.finish()?;
    let binary = arguments.measured_server(None)?;
    let scratch = workspace::Scratch::new("memcaslap")?;
    let workload = scratch.folder().join("workload");
    let (sets, gets) = (set_percent as f64 / 100.0, (100 - set_percent) as f64 / 100.0);
    // Numbers 0 and 1 are its names for set and get.
    let text = format!("key\n16 16 1\nvalue\n{value_bytes} {value_bytes} 1\ncmd\n0 {sets}\n1 {gets}\n");
    std::fs::write(&workload, text)?;
    let about = format!(
        "memcaslap, one thread, {CONNECTIONS} connections, {set_percent} % sets of {value_bytes} bytes, {seconds} s a turn"
    );
    println!("memcaslap: {about}");

    let server: Vec<&str> = SERVER.into_iter().chain([arguments.sized("8GiB", "512MiB")]).collect();
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let data = scratch.folder().join("data");
        ours.push(turn(&ServerOptions::new(&binary, &data, &server)?, &workload, seconds)?);
        std::fs::remove_dir_all(&data)?;
        let mut memcached = ServerOptions::new("memcached".as_ref(), &scratch.folder().join("memcached"), &[])?;
        memcached.memcached_options = ["-t", "1", "-m", "8192"].map(str::to_owned).into();
        theirs.push(turn(&memcached, &workload, seconds)?);
    }
    let mut outcome = Outcome::new(arguments, "memcaslap", about);
    let rates = |turns: &[Turn]| turns.iter().map(|turn| turn.operations_per_second).collect::<Vec<f64>>();
    let ratios = rates(&ours).into_iter().zip(rates(&theirs)).map(|(mine, other)| mine / other);
    outcome.hold("operations/s ÷ memcached's from DRAM", Spread::of(ratios), Reach::Reported);
    outcome.hold("operations/s of tapetum", Spread::of(rates(&ours)), Reach::Reported);
    outcome.hold("operations/s of memcached", Spread::of(rates(&theirs)), Reach::Reported);
    let shares = ours.iter().map(|turn| turn.flash_share);
    outcome.hold("tapetum's gets answered from flash ÷ all", Spread::of(shares), Reach::Reported);
    outcome.end()
}

fn turn(options: &ServerOptions, workload: &Path, seconds: u64) -> Result<Turn, Failure> {
    let server = options.start()?;
    let output = Command::new("memcaslap")
        .args(["-s", &options.address.to_string(), "-T", "1", "-c", CONNECTIONS, "-t", &format!("{seconds}s"), "-F"])
        .arg(workload)
        .output()
        .map_err(|error| format!("memcaslap cannot be started, which `make setup-bench` installs: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() || number_behind(&text, "get_misses:")? > 0.0 {
        return Err(format!("memcaslap ended with {}, and missed what it had stored: {text}", output.status).into());
    }
    let stats = Connection::open(options.address)?.stats("")?;
    let stat = |name: &str| stats.get(name).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    let flash_share = stat("get_from_flash") / stat("cmd_get").max(1.0);
    server.terminate()?;
    Ok(Turn { operations_per_second: number_behind(&text, "TPS:")?, flash_share })
}

fn number_behind(text: &str, name: &str) -> Result<f64, Failure> {
    let word = text.split_once(name).and_then(|(_, rest)| rest.split_whitespace().next());
    word.and_then(|word| word.parse().ok()).ok_or_else(|| format!("memcaslap said no {name} in: {text}").into())
}
