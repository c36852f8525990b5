//! The test of tests/exporter: memcached's exporter for Prometheus reads memcached with extstore, and the server. It is a Go program, so
//! this is by option.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Failure;
use crate::arguments::Arguments;
use crate::workspace::{self, Scratch, succeed};
use tapetum_bench::server::{ServerOptions, free_address};

/// Its version and the checksums of all that goes into it are in `go.mod` and `go.sum` of the same folder.
const PACKAGE: &str = "github.com/prometheus/memcached_exporter/cmd/memcached_exporter";

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let binary = arguments.tested_server()?;
    let folder = workspace::root().join("tests/exporter");
    let exporter = build(&folder)?;
    let scratch = Scratch::new("exporter")?;
    let metrics = free_address()?.to_string();
    let words = ["--cache", "--capacity", "1GiB", "--memory", "128MiB", "--metrics", &metrics];
    let server = ServerOptions::new(&binary, &scratch.folder().join("data"), &words)?.start()?;
    let extstore = format!("ext_path={}:512m", scratch.folder().join("extstore").display());
    // extstore takes no larger items. All are in DRAM: which of them it would lose, it does not say.
    let memcached_options = ["-I", "1m", "-m", "64", "-o", &extstore].map(str::to_owned).into();
    let memcached = ServerOptions::new(Path::new("memcached"), &scratch.folder().join("memcached"), &[])?;
    let memcached = ServerOptions { memcached_options, ..memcached }.start()?;
    let mut python = Command::new("python3");
    python.env("PYTHONDONTWRITEBYTECODE", "1").arg(folder.join("exporter.py"));
    python.arg("--exporter").arg(exporter).args(["--metrics", &metrics]);
    python.args(["--tapetum", &server.address().to_string(), "--memcached", &memcached.address().to_string()]);
    succeed(&mut python, "dashboards made for memcached's exporter would miss what is above")?;
    memcached.kill()?;
    server.terminate()
}

/// Builds the exporter from Go's registry.
fn build(folder: &Path) -> Result<PathBuf, Failure> {
    let built = workspace::target().join("memcached_exporter");
    let status = Command::new("go").args(["build", "-o"]).arg(&built).arg(PACKAGE).current_dir(folder).status();
    let status = status.map_err(|error| format!("go cannot be run (install Go 1.21 or later): {error}"))?;
    if !status.success() {
        return Err("go cannot build memcached's exporter; it says why above".into());
    }
    Ok(built)
}
