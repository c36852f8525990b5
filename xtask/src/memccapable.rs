//! memccapable, of Debian's libmemcached-tools: a conformance test of both protocols that nobody here wrote.

use std::path::Path;
use std::process::Command;

use crate::arguments::Arguments;
use crate::{Failure, workspace};
use tapetum_bench::server::ServerOptions;

/// Text and binary together, in libmemcached 1.1.
const TESTS: usize = 54;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let binary = arguments.tested_server()?;
    workspace::keeping("memccapable", |scratch| check(&binary, scratch))
}

fn check(binary: &Path, scratch: &Path) -> Result<(), Failure> {
    let server = ServerOptions::new(binary, &scratch.join("data"), &["--capacity", "2GiB"])?.start()?;
    let address = server.address();
    let output = Command::new("memccapable")
        .args(["-h", &address.ip().to_string(), "-p", &address.port().to_string(), "-t", "10"])
        .output()
        .map_err(|error| format!("memccapable cannot be run (apt-get install libmemcached-tools): {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    let passed = text.lines().filter(|line| line.trim_end().ends_with("[pass]")).count();
    println!("memccapable: {passed} of {TESTS} passed");
    if passed != TESTS || !output.status.success() {
        return Err(format!("memccapable is not content:\n{text}").into());
    }
    server.terminate()
}
