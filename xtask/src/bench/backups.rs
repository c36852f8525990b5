//! What backups cost: a backup and its restore beside `cp` of as many bytes, in turns; the bytes that a second backup copies, by what changed; GETs
//! and PUTs beside one; and how far a standby is behind a server that takes 20,000 writes a second.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tapetum::backup::{self, BackupOptions, BackupReport, Depot, FolderDepot, Restore};
use tapetum::{BLOCK_BYTES, BlockDevice, KeyspaceKind, Options, Place, Store, Sync, restore_at};
use tapetum_bench::client::{Connection, Line};
use tapetum_bench::random::Random;
use tapetum_bench::server::{ServerOptions, die_with_parent, free_address};

use super::mixed_load::Workload;
use crate::arguments::Arguments;
use crate::results::outcome::{Outcome, Reach};
use crate::results::spread::Spread;
use crate::{Failure, workspace};

const MEMORY_BYTES: u64 = 512 << 20;
const CAPACITY_BYTES: u64 = 4 << 30;
const VALUE_BYTES: usize = 400;
const BACKUP_MOST: f64 = 2.0;
const RESTORE_MOST: f64 = 1.5;
const COPIED_MOST: f64 = 4.0;
const KEPT_LEAST: f64 = 0.9;
/// Blocks of a group, as `tapetum keyspace create` makes them.
const DEVICE_GROUP: u64 = 8;
/// Writes a second, and how many of them are sent together.
const WRITES_PER_SECOND: u64 = 20_000;
const WRITES_TOGETHER: u64 = 200;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let items = arguments.number("items", 2_500_000)?;
    let rounds = arguments.number("rounds", 5)?;
    let seconds = arguments.number("seconds", 10)?;
    arguments.finish()?;
    let binary = arguments.measured_server(None)?;
    let about = format!(
        "{items} items of {VALUE_BYTES} bytes that do not compress in a hashed keyspace, a quarter as many in an ordered one; 512 MiB of \
         memory, everysec"
    );
    let mut outcome = Outcome::new(arguments, "backups", about);
    for (name, kind, items) in [("hashed", KeyspaceKind::Hashed, items), ("ordered", KeyspaceKind::Ordered, items / 4)]
    {
        let scratch = workspace::Scratch::new(&format!("backups-{name}"))?;
        let options = Options::new().capacity_bytes(CAPACITY_BYTES).memory_bytes(MEMORY_BYTES).sync(Sync::EverySecond);
        let store = options.open(scratch.folder().join("data"))?;
        let keyspace = store.create_keyspace_of("items", kind)?;
        let mut load = Workload::new(&store, &keyspace, items, incompressible(VALUE_BYTES))?;
        load.fill()?;
        let bench = Bench { store: &store, folder: scratch.folder(), name };
        bench.beside_cp(&mut outcome, rounds)?;
        bench.changed(&mut outcome, &mut load, items / 100, rounds)?;
        for gets in [true, false] {
            bench.beside_load(&mut outcome, &mut load, gets, rounds, Duration::from_secs(seconds))?;
        }
        store.close()?;
    }
    device(&mut outcome, items / 100, rounds)?;
    lag(&mut outcome, &binary, Duration::from_secs(seconds))?;
    outcome.end()
}

fn incompressible(bytes: usize) -> Vec<u8> {
    let mut random = Random::new(5);
    (0..bytes).map(|_| random.below(256) as u8).collect()
}

struct Bench<'a> {
    store: &'a Store,
    folder: &'a Path,
    name: &'a str,
}

impl Bench<'_> {
    fn depot(&self, name: &str) -> Result<Arc<dyn Depot>, Failure> {
        Ok(Arc::new(FolderDepot::make(&self.folder.join(name))?))
    }

    fn back_up(&self, depot: &Arc<dyn Depot>) -> Result<BackupReport, Failure> {
        Ok(self.store.backup(depot, &BackupOptions { generation: 1, anew: false }, &mut |_| true)?)
    }

    /// Whole backups and restores, and copies of as many bytes, all durable at their ends.
    fn beside_cp(&self, outcome: &mut Outcome, rounds: u64) -> Result<(), Failure> {
        let (mut backups, mut restores, mut rates) = (Vec::new(), Vec::new(), Vec::new());
        let [to, copy, restored] = ["to", "copy", "restored"].map(|name| self.folder.join(name));
        for _ in 0..rounds {
            let depot = self.depot("to")?;
            let begun = Instant::now();
            let made = self.back_up(&depot)?;
            let backing_up = begun.elapsed().as_secs_f64();
            let copying = cp(&to, &copy)?;
            let manifest = backup::read(&*depot, &made.name)?;
            let begun = Instant::now();
            let place = Place::Directory(restored.clone());
            restore_at(&place, &*depot, (&made.name, &manifest), Restore::Whole)?;
            let restoring = begun.elapsed().as_secs_f64();
            backups.push(backing_up / copying);
            restores.push(restoring / copying);
            rates.push(made.copied_bytes as f64 / 1048576.0 / backing_up);
            [&to, &copy, &restored].into_iter().try_for_each(fs::remove_dir_all)?;
        }
        let named = |what: &str| format!("{}, {what}", self.name);
        outcome.hold(named("a whole backup ÷ cp of its bytes"), Spread::of(backups), Reach::AtMost(BACKUP_MOST));
        outcome.hold(named("its restore ÷ cp of its bytes"), Spread::of(restores), Reach::AtMost(RESTORE_MOST));
        outcome.hold(named("a whole backup, MiB a second"), Spread::of(rates), Reach::Reported);
        Ok(())
    }

    /// What a second backup copies after some items were written again.
    fn changed(&self, outcome: &mut Outcome, load: &mut Workload<'_>, items: u64, rounds: u64) -> Result<(), Failure> {
        let depot = self.depot("increments")?;
        self.back_up(&depot)?;
        let (mut ratios, mut took) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            load.put(items)?;
            let begun = Instant::now();
            let made = self.back_up(&depot)?;
            took.push(begun.elapsed().as_secs_f64());
            ratios.push(made.copied_bytes as f64 / (items * VALUE_BYTES as u64).max(1) as f64);
        }
        let reach = if self.name == "hashed" { Reach::AtMost(COPIED_MOST) } else { Reach::Reported };
        let named = |what: &str| format!("{}, 1 % changed: {what}", self.name);
        outcome.hold(named("bytes copied ÷ bytes changed"), Spread::of(ratios), reach);
        outcome.hold(named("seconds"), Spread::of(took), Reach::Reported);
        fs::remove_dir_all(self.folder.join("increments"))?;
        Ok(())
    }

    /// Turns with whole backups one after the other, and without.
    fn beside_load(
        &self,
        outcome: &mut Outcome,
        load: &mut Workload<'_>,
        gets: bool,
        rounds: u64,
        length: Duration,
    ) -> Result<(), Failure> {
        let mut kept = Vec::new();
        load.turn(gets, length)?;
        for round in 0..rounds {
            let mut rates = [0.0; 2];
            // The order changes from round to round.
            for with_backup in [round % 2 == 0, round % 2 == 1] {
                rates[usize::from(with_backup)] = match with_backup {
                    false => load.turn(gets, length)?,
                    true => self.turn_beside_backups(load, gets, length)?,
                };
            }
            kept.push(rates[1] / rates[0]);
        }
        let what = if gets { "GETs" } else { "half PUTs" };
        let named = format!("{}, {what} beside whole backups ÷ without", self.name);
        outcome.hold(named, Spread::of(kept), Reach::AtLeast(KEPT_LEAST));
        Ok(())
    }

    fn turn_beside_backups(&self, load: &mut Workload<'_>, gets: bool, length: Duration) -> Result<f64, Failure> {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let backups = scope.spawn(|| -> Result<(), String> {
                while !is_over.load(Ordering::Relaxed) {
                    let depot = self.depot("beside").map_err(|error| error.to_string())?;
                    let options = BackupOptions { generation: 1, anew: true };
                    let made = self.store.backup(&depot, &options, &mut |_| !is_over.load(Ordering::Relaxed));
                    match made {
                        Ok(_) | Err(backup::BackupError::Cancelled) => {}
                        Err(error) => return Err(error.to_string()),
                    }
                    fs::remove_dir_all(self.folder.join("beside")).map_err(|error| error.to_string())?;
                }
                Ok(())
            });
            let rate = load.turn(gets, length);
            is_over.store(true, Ordering::Relaxed);
            backups.join().map_err(|_| "a backup panicked")??;
            rate
        })
    }
}

/// What a second backup of a block device copies after blocks were written again.
fn device(outcome: &mut Outcome, blocks: u64, rounds: u64) -> Result<(), Failure> {
    let scratch = workspace::Scratch::new("backups-device")?;
    let options = Options::new().capacity_bytes(CAPACITY_BYTES).memory_bytes(MEMORY_BYTES).sync(Sync::EverySecond);
    let store = options.open(scratch.folder().join("data"))?;
    let blocks = blocks.max(100);
    let device = BlockDevice::new(blocks * BLOCK_BYTES as u64)?.in_groups_of(DEVICE_GROUP)?;
    let disk = store.create_block_device("disk", device)?;
    let block = incompressible(BLOCK_BYTES);
    (0..blocks).try_for_each(|number| disk.put(&device.key(number), &block).map(drop))?;
    let depot: Arc<dyn Depot> = Arc::new(FolderDepot::make(&scratch.folder().join("depot"))?);
    let back_up = || store.backup(&depot, &BackupOptions { generation: 1, anew: false }, &mut |_| true);
    let (mut random, mut ratios) = (Random::new(9), Vec::new());
    back_up()?;
    for _ in 0..rounds {
        for _ in 0..blocks / 100 {
            disk.put(&device.key(random.below(blocks)), &block)?;
        }
        ratios.push(back_up()?.copied_bytes as f64 / (blocks / 100 * BLOCK_BYTES as u64) as f64);
    }
    let named = "a block device, 1 % changed: bytes copied ÷ bytes changed";
    outcome.hold(named, Spread::of(ratios), Reach::AtMost(COPIED_MOST));
    Ok(store.close()?)
}

/// Copies a folder; seconds until the copy is durable.
fn cp(from: &Path, to: &Path) -> Result<f64, Failure> {
    let begun = Instant::now();
    let copied = Command::new("cp").arg("-r").args([from, to]).status()?;
    if !copied.success() {
        return Err(format!("cp of {} failed", from.display()).into());
    }
    sync_all(to)?;
    Ok(begun.elapsed().as_secs_f64())
}

fn sync_all(folder: &Path) -> Result<(), Failure> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() { sync_all(&path)? } else { File::open(&path)?.sync_all()? }
    }
    Ok(File::open(folder)?.sync_all()?)
}

/// A standby's process, killed when dropped.
struct Standby(Child);

impl Drop for Standby {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How old what a standby shows is, by a clock that is written to its server again and again.
fn lag(outcome: &mut Outcome, binary: &Path, length: Duration) -> Result<(), Failure> {
    let scratch = workspace::Scratch::new("backups-lag")?;
    let [data, depot, behind] = ["data", "depot", "standby"].map(|name| scratch.folder().join(name));
    let to = depot.display().to_string();
    let options = ["--memory", "512MiB", "--capacity", "2GiB", "--backup-to", &to, "--every", "1", "--keep", "8"];
    let server = ServerOptions::new(binary, &data, &options)?.start()?;
    while !fs::read_dir(depot.join("backups")).is_ok_and(|mut backups| backups.next().is_some()) {
        std::thread::sleep(Duration::from_millis(50));
    }
    let (standby, at) = start_standby(binary, &behind, &to)?;
    let is_over = AtomicBool::new(false);
    let (lags, writes) = std::thread::scope(|scope| {
        let writes = scope.spawn(|| write_clock(server.address(), &is_over).map_err(|error| error.to_string()));
        let lags = watch_clock(at, length);
        is_over.store(true, Ordering::Relaxed);
        let writes = writes.join().map_err(|_| "the writer panicked")??;
        Ok::<_, Failure>((lags?, writes))
    })?;
    drop(standby);
    server.terminate()?;
    outcome.report("a standby: writes a second of its server", writes);
    let most = lags.iter().copied().fold(0.0, f64::max);
    outcome.hold("a standby: seconds behind", Spread::of(lags), Reach::Reported);
    outcome.report("a standby: the most seconds behind", most);
    Ok(())
}

fn start_standby(binary: &Path, data: &PathBuf, depot: &str) -> Result<(Standby, SocketAddr), Failure> {
    let address = free_address()?;
    let mut command = Command::new(binary);
    command.args(["serve", "--follow", depot, "--memory", "512MiB", "--memcached", &address.to_string(), "--data"]);
    command.arg(data).stdout(Stdio::null()).stderr(Stdio::null());
    die_with_parent(&mut command);
    let standby = Standby(command.spawn()?);
    let begun = Instant::now();
    while Connection::open(address).is_err() {
        if begun.elapsed() > Duration::from_secs(60) {
            return Err("the standby does not serve".into());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok((standby, address))
}

/// Writes the time to one key, and other keys between, as many in a second as were wanted. Returns how many that were.
fn write_clock(address: SocketAddr, is_over: &AtomicBool) -> Result<f64, Failure> {
    let (mut connection, mut random, value) = (Connection::open(address)?, Random::new(3), incompressible(VALUE_BYTES));
    let (begun, mut written) = (Instant::now(), 0);
    while !is_over.load(Ordering::Relaxed) {
        connection.queue_set(b"clock", 0, now_ms().to_string().as_bytes());
        for _ in 1..WRITES_TOGETHER {
            connection.queue_set(format!("key{:08}", random.below(1_000_000)).as_bytes(), 0, &value);
        }
        connection.flush()?;
        for _ in 0..WRITES_TOGETHER {
            match connection.read_line()? {
                Line::Stored => {}
                other => return Err(format!("a write was answered {other:?}").into()),
            }
        }
        written += WRITES_TOGETHER;
        let due = Duration::from_secs_f64(written as f64 / WRITES_PER_SECOND as f64);
        std::thread::sleep(due.saturating_sub(begun.elapsed()));
    }
    Ok(written as f64 / begun.elapsed().as_secs_f64())
}

/// Looks ten times a second how old the standby's clock is.
fn watch_clock(address: SocketAddr, length: Duration) -> Result<Vec<f64>, Failure> {
    let (mut connection, mut lags, begun) = (Connection::open(address)?, Vec::new(), Instant::now());
    while begun.elapsed() < length + Duration::from_secs(5) {
        connection.queue_get([&b"clock"[..]]);
        connection.flush()?;
        let mut clock = None;
        connection
            .read_values(|value| clock = std::str::from_utf8(value.bytes).ok().and_then(|text| text.parse().ok()))?;
        // The first backups know of no clock, or were made before it was written in turn.
        if let (Some(clock), true) = (clock, begun.elapsed() > Duration::from_secs(5)) {
            lags.push(now_ms().saturating_sub(clock) as f64 / 1e3);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    if lags.is_empty() { Err("the standby showed no clock".into()) } else { Ok(lags) }
}

/// One clock for both processes: that of the machine.
fn now_ms() -> u64 {
    tapetum_drive::Env::system().unix_millis()
}
