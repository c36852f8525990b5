//! Turns of fio, and its results.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::Failure;

/// Each block, compressed by itself, shrinks to a third.
const DATA: [&str; 4] =
    ["--buffer_compress_percentage=67", "--buffer_compress_chunk=4096", "--refill_buffers", "--randrepeat=0"];

/// A mix of reads and writes.
#[derive(Clone, Copy)]
pub struct Fio {
    pub depth: u64,
    pub seconds: u64,
    pub device_bytes: u64,
}

#[derive(Clone, Copy, Default)]
pub struct FioTurn {
    pub operations: f64,
    pub seconds: f64,
    /// P99.99 of reads or of writes, whichever is longer.
    pub tail_us: f64,
    pub written_bytes: f64,
    /// Resources that the server used for it, measured outside of fio.
    pub server_cpu_us: f64,
    pub member_written_bytes: f64,
}

impl FioTurn {
    pub fn operations_per_second(&self) -> f64 {
        self.operations / self.seconds
    }

    pub fn cpu_us(&self) -> f64 {
        self.server_cpu_us / self.operations
    }

    /// Bytes written to the member ÷ bytes that fio wrote.
    pub fn amplification(&self) -> f64 {
        self.member_written_bytes / self.written_bytes
    }
}

impl Fio {
    /// Checks that fio exists and supports NBD.
    pub fn check() -> Result<(), Failure> {
        let list = Command::new("fio").arg("--enghelp").output();
        match list {
            Ok(list) if String::from_utf8_lossy(&list.stdout).contains("nbd") => Ok(()),
            _ => Err("fio with its engine nbd is missing: apt-get install fio".into()),
        }
    }

    /// Writes all of a device once.
    pub fn fill(uri: &str, device_bytes: u64) -> Result<(), Failure> {
        let size = format!("--size={device_bytes}");
        let words = ["--rw=write", "--bs=256k", "--iodepth=8", &size];
        run(Command::new("fio").args(over(uri)).args(words).args(DATA)).map(drop)
    }

    pub fn mix(&self, uri: &str) -> Result<FioTurn, Failure> {
        let (size, depth) = (format!("--size={}", self.device_bytes), format!("--iodepth={}", self.depth));
        let time = format!("--runtime={}", self.seconds);
        let words = ["--rw=randrw", "--rwmixread=70", "--bs=4k", "--norandommap", "--time_based"];
        let job = run(Command::new("fio").args(over(uri)).args(words).args([&size, &depth, &time]).args(DATA))?;
        let number = |of: &str, name: &str| job[of][name].as_f64().ok_or_else(|| format!("fio says no {name} of {of}"));
        let tail = |of: &str| job[of]["clat_ns"]["percentile"]["99.990000"].as_f64().unwrap_or(0.0) / 1000.0;
        Ok(FioTurn {
            operations: number("read", "total_ios")? + number("write", "total_ios")?,
            seconds: number("read", "runtime")? / 1000.0,
            tail_us: tail("read").max(tail("write")),
            written_bytes: number("write", "io_bytes")?,
            ..FioTurn::default()
        })
    }

    /// Bytes per second of sequential reads of the whole device, repeated.
    pub fn read(uri: &str, device_bytes: u64, seconds: u64) -> Result<f64, Failure> {
        read_by(&over(uri), device_bytes, seconds)
    }

    /// The same for the bare device.
    pub fn read_member(device: &Path, device_bytes: u64, seconds: u64) -> Result<f64, Failure> {
        let device = format!("--filename={}", device.display());
        read_by(&["--ioengine=io_uring".to_owned(), "--direct=1".to_owned(), device], device_bytes, seconds)
    }
}

fn read_by(engine: &[String], device_bytes: u64, seconds: u64) -> Result<f64, Failure> {
    let (size, time) = (format!("--size={device_bytes}"), format!("--runtime={seconds}"));
    let words = ["--rw=read", "--bs=256k", "--iodepth=8", "--time_based"];
    let job = run(Command::new("fio").args(engine).args(words).args([&size, &time]))?;
    job["read"]["bw_bytes"].as_f64().ok_or_else(|| "fio says no bw_bytes of read".into())
}

fn over(uri: &str) -> [String; 2] {
    ["--ioengine=nbd".to_owned(), format!("--uri={uri}")]
}

/// The result of the single job.
fn run(command: &mut Command) -> Result<Value, Failure> {
    command.args(["--name=turn", "--output-format=json"]);
    let output = command.output().map_err(|error| format!("fio cannot be run: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let failed =
        || format!("{command:?} ended with {}: {}{text}", output.status, String::from_utf8_lossy(&output.stderr));
    // Notes precede the JSON.
    let account = text.find('{').map(|at| &text[at..]).ok_or_else(failed)?;
    let mut account: Value = serde_json::from_str(account).map_err(|_| failed())?;
    let job = account["jobs"][0].take();
    if !output.status.success() || job["error"].as_u64() != Some(0) {
        return Err(failed().into());
    }
    Ok(job)
}
