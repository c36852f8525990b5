//! MariaDB on a block device beside MariaDB on a plain disk (XDP's figure 16): sysbench's read-write transactions, each made durable by
//! itself, with a buffer pool of an eighth of the data. Each contender has its own member on the same disk. All have the same limits once
//! the tables are filled.
//!
//! A page of InnoDB is 16 KiB, so with blocks in groups of 4 it is one record. Single blocks are measured as well.
//!
//! This machine's kernel reaches NBD only through nbdfuse and a loop device; the plain disk needs neither. So qemu-nbd over a bare member,
//! reached in the same way, is measured too.

mod database;
mod sysbench;

use std::fs;
use std::path::{Path, PathBuf};

use self::database::Database;
use self::sysbench::{Sysbench, SysbenchTurn};
use super::block::member::{Limits, Member, Throttled};
use super::block::servers::{Contender, Exporter};
use crate::Failure;
use crate::arguments::Arguments;
use crate::nbd::file_system::EXT4;
use crate::nbd::fuse_disk::{FuseDisk, Mounted};
use crate::results::chart::{Chart, Line, Scale};
use crate::results::outcome::{Outcome, Reach};
use crate::results::picture::Picture;
use crate::results::spread::Spread;
use crate::workspace::Scratch;

/// Approximate bytes of a row with its indexes.
const ROW_BYTES: u64 = 240;
/// Sizes relative to the data: the device, which also holds InnoDB's logs, and the member below it.
const DEVICE_SHARE: u64 = 3;
const DEVICE_BESIDE_BYTES: u64 = 1 << 30;
const MEMBER_PERCENT: u64 = 150;
/// InnoDB's buffer pool is the data divided by this.
const POOL_SHARE: u64 = 8;
/// InnoDB does not start with less.
const POOL_BYTES_MIN: u64 = 8 << 20;
const STORE_MEMORY_BYTES: u64 = 256 << 20;
const SPEED_LEAST: f64 = 2.5;
/// The first so many entrants are rivals. The last entrant is compared with each of them.
const RIVALS: usize = 2;

enum Disk {
    Plain(Member),
    Exported(FuseDisk, Box<Exporter>),
}

struct Entrant {
    label: &'static str,
    // Dropped in this order.
    database: Database,
    mounted: Mounted,
    disk: Disk,
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let rows = arguments.number("rows", 2_000_000)?;
    let rounds = arguments.number("rounds", 3)?;
    let seconds = arguments.number("seconds", 30)?;
    let threads = arguments.number("threads", 16)?;
    let limits = Limits::parse(arguments)?;
    arguments.finish()?;
    let scratch = Scratch::new("mariadb")?;
    let check = database::check().and_then(|()| sysbench::check()).and_then(|()| Member::check(scratch.folder()));
    if let Err(why) = check {
        println!("mariadb: left out ({why})");
        return Ok(());
    }
    let binary = arguments.measured_server(None)?;
    let data_bytes = rows * ROW_BYTES;
    let pool_bytes = (data_bytes / POOL_SHARE).max(POOL_BYTES_MIN);
    let about = format!(
        "sysbench oltp_read_write, {rows} rows, {threads} clients, a buffer pool of {} MiB, {seconds} s a turn; members {}",
        pool_bytes >> 20,
        limits.map_or("not throttled".to_owned(), |limits| limits.to_string())
    );
    let mut outcome = Outcome::new(arguments, "mariadb", about);
    let mut entrants = Vec::new();
    let mut throttled: Vec<Throttled> = Vec::new();
    for contender in [None, Some(Contender::QemuNbd), Some(Contender::Blocks), Some(Contender::Groups4)] {
        let entrant = Entrant::start(contender, &binary, scratch.folder(), data_bytes, pool_bytes)?;
        sysbench(&entrant, rows, threads).fill()?;
        throttled.push(entrant.disk.member().throttle(limits)?);
        println!("mariadb: {} is filled", entrant.label);
        entrants.push(entrant);
    }
    let mut turns: Vec<Vec<Turn>> = entrants.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        for (entrant, turns) in entrants.iter().zip(&mut turns) {
            turns.push(entrant.turn(&sysbench(entrant, rows, threads), seconds)?);
        }
    }
    tell(&mut outcome, &entrants, &turns);
    outcome.picture(Picture::new("mariadb", vec![chart(&entrants, &turns)]));
    for entrant in entrants {
        entrant.stop()?;
    }
    drop(throttled);
    outcome.end()
}

fn sysbench(entrant: &Entrant, rows: u64, threads: u64) -> Sysbench<'_> {
    Sysbench { socket: entrant.database.socket(), rows, threads }
}

/// The transactions of a turn, and the resources used.
struct Turn {
    transactions: SysbenchTurn,
    member_written_bytes: f64,
    /// CPU time of the device's server.
    server_cpu_us: f64,
}

impl Disk {
    fn new(
        contender: Option<Contender>,
        member: Member,
        binary: &Path,
        folder: &Path,
        device_bytes: u64,
    ) -> Result<Disk, Failure> {
        let Some(contender) = contender else { return Ok(Disk::Plain(member)) };
        let exporter = Exporter::start(contender, member, binary, folder, device_bytes, STORE_MEMORY_BYTES)?;
        let fuse = FuseDisk::show(&exporter.uri(), &folder.join("fuse"))?;
        Ok(Disk::Exported(fuse, Box::new(exporter)))
    }

    fn path(&self) -> PathBuf {
        match self {
            Disk::Plain(member) => member.device().to_owned(),
            Disk::Exported(fuse, _) => fuse.path().to_owned(),
        }
    }

    fn member(&self) -> &Member {
        match self {
            Disk::Plain(member) => member,
            Disk::Exported(_, exporter) => exporter.member(),
        }
    }

    fn cpu_us(&self) -> Result<u64, Failure> {
        match self {
            Disk::Plain(_) => Ok(0),
            Disk::Exported(_, exporter) => exporter.cpu_us(),
        }
    }
}

impl Entrant {
    fn start(
        contender: Option<Contender>,
        binary: &Path,
        scratch: &Path,
        data_bytes: u64,
        pool_bytes: u64,
    ) -> Result<Entrant, Failure> {
        let label = match contender {
            None => "a plain disk",
            Some(contender) => contender.label(),
        };
        let folder = scratch.join(label.replace(' ', "-"));
        fs::create_dir_all(&folder)?;
        let device_bytes = (data_bytes * DEVICE_SHARE + DEVICE_BESIDE_BYTES).next_multiple_of(1 << 20);
        let member = Member::new(&folder, "disk", device_bytes * MEMBER_PERCENT / 100)?;
        let disk = Disk::new(contender, member, binary, &folder, device_bytes)?;
        EXT4.make(&disk.path())?;
        let mounted = Mounted::new(&disk.path(), &folder.join("files"))?;
        let database = Database::start(mounted.folder(), &folder, pool_bytes)?;
        Ok(Entrant { label, database, mounted, disk })
    }

    fn turn(&self, sysbench: &Sysbench<'_>, seconds: u64) -> Result<Turn, Failure> {
        let before = (self.disk.cpu_us()?, self.disk.member().written_bytes()?);
        let transactions = sysbench.run(seconds)?;
        let server_cpu_us = (self.disk.cpu_us()? - before.0) as f64;
        let member_written_bytes = (self.disk.member().written_bytes()? - before.1) as f64;
        Ok(Turn { transactions, member_written_bytes, server_cpu_us })
    }

    fn stop(self) -> Result<(), Failure> {
        let Entrant { database, mounted, disk, .. } = self;
        database.stop()?;
        mounted.unmount()?;
        match disk {
            Disk::Plain(_) => Ok(()),
            Disk::Exported(fuse, exporter) => {
                drop(fuse);
                exporter.stop()
            }
        }
    }
}

impl Turn {
    fn each(&self, figure: f64) -> f64 {
        figure / self.transactions.count
    }
}

fn tell(outcome: &mut Outcome, entrants: &[Entrant], turns: &[Vec<Turn>]) {
    outcome.columns(&[
        "contender",
        "transactions/s",
        "P99 ms",
        "P99.9 ms",
        "KiB to the member a transaction",
        "CPU µs of the device's server a transaction",
    ]);
    let figures: [fn(&Turn) -> f64; 5] = [
        |turn| turn.transactions.per_second(),
        |turn| turn.transactions.quantile_ms(0.99),
        |turn| turn.transactions.quantile_ms(0.999),
        |turn| turn.each(turn.member_written_bytes) / 1024.0,
        |turn| turn.each(turn.server_cpu_us),
    ];
    for (entrant, turns) in entrants.iter().zip(turns) {
        let spread = figures.map(|figure| Spread::of(turns.iter().map(figure)));
        outcome.line(entrant.label, spread.into());
    }
    let Some((own, others)) = turns.split_last() else { return };
    for (entrant, other) in entrants.iter().zip(&others[..RIVALS]) {
        let ratio = |figure: fn(&Turn) -> f64| {
            Spread::of(own.iter().zip(other).map(|(own, other)| figure(own) / figure(other)))
        };
        outcome.hold(
            format!("groups of 4: transactions/s ÷ those on {}", entrant.label),
            ratio(figures[0]),
            Reach::AtLeast(SPEED_LEAST),
        );
        outcome.hold(format!("groups of 4: P99.9 ÷ that on {}", entrant.label), ratio(figures[2]), Reach::Reported);
        outcome.hold(
            format!("groups of 4: bytes a transaction ÷ those on {}", entrant.label),
            ratio(figures[3]),
            Reach::Reported,
        );
    }
}

/// Transactions by the second, turn after turn.
fn chart(entrants: &[Entrant], turns: &[Vec<Turn>]) -> Chart {
    let line = |(entrant, turns): (&Entrant, &Vec<Turn>)| {
        let seconds = turns.iter().flat_map(|turn| &turn.transactions.each_second);
        let points = (1..).zip(seconds).map(|(second, count)| (f64::from(second), Spread::once(*count)));
        Line::new(entrant.label, points)
    };
    let lines = entrants.iter().zip(turns).map(line).collect();
    let labels = ["seconds of its turns", "transactions a second"];
    Chart::new("MariaDB: transactions over time", labels, Scale::Linear, lines)
}
