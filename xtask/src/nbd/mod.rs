//! Block devices from the side of their clients: common tools (nbdinfo, nbdcopy, qemu-io, qemu-img) against a server, libnbd's whole
//! interface (tests/nbd), random requests against a model, thousands of clients, and kill -9 under writers of patterns and under a file
//! system.

pub mod file_system;
pub mod fuse_disk;
pub mod pattern;
mod tools;
mod visitors;

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use self::file_system::{EXT4, FileSystem};
use self::fuse_disk::FuseDisk;
use crate::arguments::Arguments;
use crate::kill::Kill;
use crate::{Failure, python, workspace};
use tapetum_bench::nbd_client::{NbdClient, READ};
use tapetum_bench::nbd_model::DeviceModel;
use tapetum_bench::random::Random;
use tapetum_bench::server::{Server, ServerOptions, free_address};

pub const DISK: &str = "disk0";
pub const DISK_BYTES: u64 = 64 << 20;
/// A device that is never written to.
pub const FROZEN: &str = "frozen";
/// Requests in flight in the random test.
const DEPTH: usize = 24;
const CAPACITY: [&str; 4] = ["--capacity", "512MiB", "--memory", "128MiB"];

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let operations = arguments.number("operations", 100_000)?;
    let cycles = arguments.number("cycles", 10)?;
    let seed = arguments.number("seed", u64::from(std::process::id()))?;
    let clients = arguments.number("clients", 1000)?;
    let pause = Duration::from_millis(arguments.number("pause-ms", 0)?);
    let file_system = arguments.text("file-system").map(str::to_owned);
    let binary = arguments.tested_server()?;
    let file_system = file_system.map(|name| FileSystem::named(&name)).transpose()?;
    workspace::keeping("nbd", |scratch| {
        if let Some(file_system) = file_system {
            return files(file_system, &binary, scratch, cycles, seed);
        }
        tools::run(&Disk::make(&binary, &scratch.join("tools"), "always", 1)?, scratch)?;
        python::devices(&binary, &scratch.join("libnbd"))?;
        random(&Disk::make(&binary, &scratch.join("random"), "everysec", 1)?, operations, seed)?;
        random(&Disk::make(&binary, &scratch.join("random-grouped"), "everysec", 8)?, operations / 4, seed)?;
        visitors::run(&Disk::make(&binary, &scratch.join("visitors"), "everysec", 1)?, clients, pause)?;
        visitors::hoard(&Disk::make(&binary, &scratch.join("hoard"), "everysec", 1)?)?;
        for (sync, group_blocks) in [("no", 8), ("always", 1)] {
            let disk = Disk::make(&binary, &scratch.join(format!("kill-{sync}")), sync, group_blocks)?;
            let durable = pattern::run(&disk, cycles.div_ceil(2), seed, &mut Kill)?;
            println!("test-nbd: kills at --sync {sync}: {durable} writes of blocks were durable, none lost");
        }
        match FuseDisk::check(scratch) {
            Ok(()) => files(EXT4, &binary, scratch, cycles.div_ceil(4), seed),
            Err(why) => {
                println!("test-nbd: LEFT OUT, a file system: {why}");
                Ok(())
            }
        }
    })
    .map_err(|failure| format!("{failure}\nseed {seed}").into())
}

/// Tests a file system on a device, and kills under it.
fn files(file_system: FileSystem, binary: &Path, scratch: &Path, cycles: u64, seed: u64) -> Result<(), Failure> {
    let name = file_system.name;
    file_system.keeps(&Disk::make(binary, &scratch.join("files"), "always", 1)?, &scratch.join("kept"))?;
    for (sync, group_blocks) in [("no", 8), ("always", 1)] {
        let disk = Disk::make(binary, &scratch.join(format!("files-{sync}")), sync, group_blocks)?;
        let made = file_system.survives(&disk, &scratch.join("killed"), cycles, seed, &mut Kill)?;
        println!("test-nbd: {cycles} kills under {name} at --sync {sync}: {made} files were durable, none lost");
    }
    Ok(())
}

/// A store with two block devices.
pub struct Disk {
    pub options: ServerOptions,
    pub address: SocketAddr,
}

impl Disk {
    /// Makes a store with a block device whose blocks lie on flash in groups of so many.
    pub fn make(binary: &Path, data: &Path, sync: &str, group_blocks: u64) -> Result<Disk, Failure> {
        for (name, size) in [(DISK, DISK_BYTES), (FROZEN, 1 << 20)] {
            let mut create = Command::new(binary);
            create.args(["keyspace", "create", name, "--block-device", &size.to_string(), "--data"]).arg(data);
            create.args(["--group-blocks", &group_blocks.to_string()]);
            said(create.args(CAPACITY))?;
        }
        let address = free_address()?;
        let mut words = vec!["--sync", sync, "--nbd-read-only", FROZEN, "--nbd"];
        let at = address.to_string();
        words.extend([&at[..]].into_iter().chain(CAPACITY));
        Ok(Disk { options: ServerOptions::new(binary, data, &words)?, address })
    }

    pub fn start(&self) -> Result<Server, Failure> {
        self.options.start()
    }

    pub fn client(&self) -> Result<NbdClient, Failure> {
        Ok(NbdClient::open(&self.address.to_string(), DISK, true)?)
    }

    /// The address in the form that NBD clients use.
    pub fn uri(&self, name: &str) -> String {
        format!("nbd://{}/{name}", self.address)
    }
}

/// Runs a command to its end, and returns its output.
pub fn said(command: &mut Command) -> Result<String, Failure> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    Err(format!("{command:?} failed: {}{text}", String::from_utf8_lossy(&output.stderr)).into())
}

/// Runs so many random requests. Their answers, and the blocks after a restart, must match the model.
fn random(disk: &Disk, operations: u64, seed: u64) -> Result<(), Failure> {
    let server = disk.start()?;
    let (mut model, mut random) = (DeviceModel::new(DISK_BYTES), Random::new(seed));
    model.exercise(&mut disk.client()?, &mut random, operations, DEPTH)?;
    server.terminate()?;
    let server = disk.start()?;
    let mut client = disk.client()?;
    for at in (0..DISK_BYTES).step_by(1 << 20) {
        let reply = client.call(READ, 0, at, 1 << 20, b"")?;
        if reply.bytes != model.bytes[at as usize..][..1 << 20] {
            return Err(format!("after a restart the mebibyte at {at} is not what it was").into());
        }
    }
    server.terminate()?;
    println!("test-nbd: {operations} random requests, as the model says");
    Ok(())
}
