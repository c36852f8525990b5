//! The test of tests/differential: sends the same bytes to Debian's memcached and to the server, and compares the replies. Requests are
//! sent whole, byte by byte, and in datagrams; then both get tests/vectors. Once with a server that answers when a write is durable, and
//! once with one that answers at once.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::arguments::Arguments;
use crate::{Failure, workspace};
use tapetum_bench::server::ServerOptions;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let only = arguments.text("only").map(str::to_owned);
    let binary = arguments.tested_server()?;
    // In parallel: most of the time is spent waiting for the disk.
    let (binary, only) = (&binary, only.as_deref());
    std::thread::scope(|scope| {
        let compared = ["always", "everysec"].map(|sync| {
            let name = format!("differential-{sync}");
            let compare = move || workspace::keeping(&name, |scratch| compare(binary, scratch, sync, only));
            scope.spawn(compare)
        });
        compared.into_iter().try_for_each(|thread| thread.join().expect("comparing does not panic"))
    })
}

/// Output is printed script by script, because another server is compared at the same time.
fn compare(binary: &Path, scratch: &Path, sync: &str, only: Option<&str>) -> Result<(), Failure> {
    let words = ["--capacity", "2GiB", "--tier", "64MiB", "--sync", sync];
    let options = ServerOptions::new(binary, &scratch.join("data"), &words)?;
    let server = ServerOptions { udp: true, ..options }.start()?;
    for (script, words) in
        [("differential.py", &["--pieces"][..]), ("datagrams.py", &[]), ("vectors.py", &[]), ("stat_names.py", &[])]
    {
        let mut python = Command::new("python3");
        python.env("PYTHONDONTWRITEBYTECODE", "1");
        python.arg(workspace::root().join("tests/differential").join(script)).args(words);
        python.args(["--tapetum", &server.address().to_string()]);
        if let Some(pattern) = only {
            python.args(["--only", pattern]);
        }
        let output = python.stderr(Stdio::inherit()).output()?;
        print!("--sync {sync}: {}", String::from_utf8_lossy(&output.stdout));
        if !output.status.success() {
            return Err("replies differ from memcached's; the differences are above".into());
        }
    }
    server.terminate()
}
