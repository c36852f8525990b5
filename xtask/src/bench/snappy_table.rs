//! ProcPIPE's table 1: items on flash are compressed with Snappy. On the host's path the bytes of items cross to the host, which compresses
//! them. On the drive's path one command reads and compresses, and only the result crosses.
//!
//! One item after the other, on one thread. In process, the drive has no processor of its own: its programs run on the polling thread, and
//! their CPU time counts as the drive's; all other CPU time counts as the host's. With `--drive process` it is a process, as the kernel counts it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tapetum_bench::drive_process::{DriveProcess, TABLE_BYTES};
use tapetum_bench::kernels::{self, Metered, program_named};
use tapetum_bench::process::{Usage, thread_cpu_ns};
use tapetum_bench::random::Random;
use tapetum_bench::workload::Values;
use tapetum_drive::{
    Command, Completion, Drive, Env, Execution, FileFlash, IoEngine, LocalBuffer, LocalRange, MemoryAddress, Operation,
    Program, ProgramId, Purpose, QueuePair, Returned, Stage, programs,
};
use tapetum_kernels::snappy;

use crate::Failure;
use crate::arguments::Arguments;
use crate::results::outcome::{Outcome, Reach};
use crate::results::spread::Spread;
use crate::workspace::Scratch;

const ITEM_BYTES: [usize; 5] = [64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20];
const ITEM_BYTES_MAX: usize = 1 << 20;
const LIST_ALIGNMENT: usize = 8;
const LOCAL_BYTES: usize = 4 << 20;
const PATHS: [(&str, CompressPath); 2] = [("host", TableBench::on_host), ("drive", TableBench::on_drive)];

/// Compresses the item at an offset of the flash. The host gets the result.
type CompressPath = fn(&mut TableBench, u64, usize) -> Result<(), Failure>;

/// The costs of an item on one path.
#[derive(Clone, Copy)]
struct ItemCost {
    elapsed_us: f64,
    host_cpu_us: f64,
    drive_cpu_us: f64,
    across_bytes: f64,
}

/// Who counts the drive's CPU time.
enum DriveCpu {
    /// Its programs run on the thread of the host.
    Metered(Arc<AtomicU64>),
    Process(DriveProcess),
}

impl DriveCpu {
    fn ns(&self) -> Result<u64, Failure> {
        match self {
            DriveCpu::Metered(cpu_ns) => Ok(cpu_ns.load(Ordering::Relaxed)),
            DriveCpu::Process(process) => Ok(1000 * Usage::of(&[process.process()])?.cpu_us),
        }
    }
}

struct TableBench {
    // First, so that it is dropped before the buffer that its commands name.
    pair: QueuePair,
    drive: Drive,
    snappy: ProgramId,
    drive_cpu: DriveCpu,
    /// An item, its result, and the list of stages, one behind the other.
    memory: LocalBuffer,
    result_bytes: usize,
    /// The host's copy.
    raw: Vec<u8>,
    stored: Vec<u8>,
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let data_bytes = arguments.size("data", 64 << 20)?.max(ITEM_BYTES_MAX as u64);
    let random_percent = arguments.number("random-percent", 50)?;
    let rounds = arguments.number("rounds", 5)?;
    let is_process = match arguments.text("drive").unwrap_or("here") {
        "here" => false,
        "process" => true,
        other => return Err(format!("--drive takes here or process, not {other}").into()),
    };
    let binary = arguments.server();
    arguments.finish()?;
    let scratch = Scratch::new("bench-snappy")?;
    let (row, mut bench) = match is_process {
        false => ("snappy-table", TableBench::here(scratch.folder(), data_bytes)?),
        true => {
            let binary = arguments.measured_server(binary)?;
            ("snappy-table-process", TableBench::of_process(&binary, scratch.folder(), data_bytes)?)
        }
    };
    let about = format!(
        "Snappy over {} MiB of items on flash, of which {random_percent} % does not compress, one at a time",
        data_bytes >> 20
    );
    let mut outcome = Outcome::new(arguments, row, about);
    outcome.columns(&["item, path", "µs", "CPU µs, host", "CPU µs, drive", "bytes across"]);
    let mut across = None;
    for item_bytes in ITEM_BYTES {
        bench.load(item_bytes, data_bytes, random_percent)?;
        let (mut costs, places) = ([Vec::new(), Vec::new()], data_bytes / item_bytes as u64);
        for _ in 0..rounds {
            for (costs, (_, path)) in costs.iter_mut().zip(PATHS) {
                costs.push(bench.measure(path, item_bytes, places)?);
            }
        }
        for (costs, (name, _)) in costs.iter().zip(PATHS) {
            let spread = |figure: fn(&ItemCost) -> f64| Spread::of(costs.iter().map(figure));
            let figures = vec![
                spread(|cost| cost.elapsed_us),
                spread(|cost| cost.host_cpu_us),
                spread(|cost| cost.drive_cpu_us),
                spread(|cost| cost.across_bytes),
            ];
            outcome.line(format!("{} KiB, {name}", item_bytes >> 10), figures);
        }
        let ratio = |figure: fn(&ItemCost) -> f64| {
            Spread::of(costs[1].iter().zip(&costs[0]).map(|(drive, host)| figure(drive) / figure(host)))
        };
        let what = format!("{} KiB, the drive's path ÷ the host's", item_bytes >> 10);
        outcome.hold(format!("{what}: time"), ratio(|cost| cost.elapsed_us), Reach::Reported);
        outcome.hold(format!("{what}: the host's CPU"), ratio(|cost| cost.host_cpu_us), Reach::Reported);
        across = Some(ratio(|cost| cost.across_bytes));
    }
    if let Some(across) = across {
        outcome.hold("1024 KiB, the drive's path ÷ the host's: bytes across", across, Reach::Reported);
    }
    outcome.end()
}

impl TableBench {
    fn here(folder: &Path, data_bytes: u64) -> Result<TableBench, Failure> {
        let flash = FileFlash::create(&folder.join("flash"), data_bytes, IoEngine::Auto, &Env::system())?;
        let cpu_ns = Arc::new(AtomicU64::new(0));
        let metered = |program| Box::new(Metered { program, cpu_ns: cpu_ns.clone() }) as Box<dyn Program>;
        let programs = programs::built_in().into_iter().map(metered).collect();
        TableBench::over(kernels::drive(Arc::new(flash), LOCAL_BYTES, programs)?, DriveCpu::Metered(cpu_ns.clone()))
    }

    fn of_process(binary: &Path, folder: &Path, data_bytes: u64) -> Result<TableBench, Failure> {
        let process = DriveProcess::start(binary, folder, data_bytes + TABLE_BYTES, &[])?;
        let flash = process.attach("default", data_bytes)?;
        TableBench::over(Drive::over(flash, LOCAL_BYTES, Vec::new(), Env::system())?, DriveCpu::Process(process))
    }

    fn over(drive: Drive, drive_cpu: DriveCpu) -> Result<TableBench, Failure> {
        let result_bytes = snappy::compressed_bytes_max(ITEM_BYTES_MAX).next_multiple_of(LIST_ALIGNMENT);
        Ok(TableBench {
            pair: drive.queue_pair_of_one_thread(1)?,
            snappy: program_named(&drive, "snappy-compress")?,
            drive_cpu,
            memory: drive.local().allocate(LOCAL_BYTES).ok_or("the bench's drive has too little local memory")?,
            result_bytes,
            raw: Vec::with_capacity(ITEM_BYTES_MAX),
            stored: vec![0; result_bytes],
            drive,
        })
    }

    fn run(&mut self, operation: Operation) -> Result<Completion, Failure> {
        self.pair.submit(Command::new(0, operation), self.memory.take().into())?;
        let mut returned = Vec::with_capacity(1);
        while self.pair.poll(&mut returned) == 0 {
            self.pair.wait(None);
        }
        let Some(Returned { completion, lease }) = returned.pop() else { unreachable!("it has ended") };
        self.memory = lease.into_buffer();
        match completion.is_success() {
            true => Ok(completion),
            false => Err(format!("{operation:?} ended with {completion:?}").into()),
        }
    }

    /// Fills the flash with items.
    fn load(&mut self, item_bytes: usize, data_bytes: u64, random_percent: u64) -> Result<(), Failure> {
        let (values, mut random, mut value) = (Values::new(item_bytes, random_percent), Random::new(0), Vec::new());
        for place in 0..data_bytes / item_bytes as u64 {
            values.fill(place, &mut random, &mut value);
            self.pair.fill(Purpose::Other, &mut self.memory, 0..item_bytes).copy_from_slice(&value);
            let flash = place * item_bytes as u64;
            let local = self.memory.offset();
            self.run(Operation::Write {
                flash,
                from: MemoryAddress::local(local),
                length: item_bytes as u32,
                fua: false,
            })?;
        }
        self.run(Operation::Flush)?;
        // Both paths must give the same result.
        self.on_host(0, item_bytes)?;
        let from_host = self.stored.clone();
        self.on_drive(0, item_bytes)?;
        if self.raw != from_host[..self.raw.len()] {
            return Err("the drive compresses to other bytes than the host".into());
        }
        Ok(())
    }

    fn measure(&mut self, path: CompressPath, item_bytes: usize, items: u64) -> Result<ItemCost, Failure> {
        let across_before = self.drive.counters().local_to_host_bytes;
        let (begun, cpu_before_ns) = (Instant::now(), thread_cpu_ns());
        let drive_before_ns = self.drive_cpu.ns()?;
        for place in 0..items {
            path(self, place * item_bytes as u64, item_bytes)?;
        }
        let cpu_ns = thread_cpu_ns() - cpu_before_ns;
        let drive_cpu_ns = self.drive_cpu.ns()? - drive_before_ns;
        let of_thread_ns = if let DriveCpu::Metered(_) = self.drive_cpu { drive_cpu_ns } else { 0 };
        let across_bytes = self.drive.counters().local_to_host_bytes - across_before;
        let each = |amount: f64| amount / items as f64;
        Ok(ItemCost {
            elapsed_us: each(begun.elapsed().as_nanos() as f64 / 1e3),
            host_cpu_us: each((cpu_ns - of_thread_ns) as f64 / 1e3),
            drive_cpu_us: each(drive_cpu_ns as f64 / 1e3),
            across_bytes: each(across_bytes as f64),
        })
    }

    fn on_host(&mut self, flash: u64, item_bytes: usize) -> Result<(), Failure> {
        self.run(Operation::Read { flash, local: self.memory.offset(), length: item_bytes as u32 })?;
        self.raw.clear();
        self.pair.copy_to_host(Purpose::Other, &self.memory, 0..item_bytes, &mut self.raw);
        let compressed = snappy::compress(&self.raw, &mut self.stored);
        compressed.map(drop).map_err(|error| format!("the host cannot compress an item: {error:?}").into())
    }

    fn on_drive(&mut self, flash: u64, item_bytes: usize) -> Result<(), Failure> {
        let input = LocalRange { offset: self.memory.offset(), length: item_bytes as u32 };
        let read = Stage::Read { flash, local: input.offset, length: input.length };
        let result = LocalRange { offset: input.offset + ITEM_BYTES_MAX as u64, length: self.result_bytes as u32 };
        let compress = Execution::new(self.snappy, LocalRange::EMPTY, &[input], result);
        let list = [read, Stage::Execute(compress)].map(|stage| stage.encode()).concat();
        let list_at = ITEM_BYTES_MAX + self.result_bytes;
        let at = list_at..list_at + list.len();
        self.pair.fill(Purpose::Other, &mut self.memory, at).copy_from_slice(&list);
        let stages = LocalRange { offset: self.memory.offset() + list_at as u64, length: list.len() as u32 };
        let compressed = self.run(Operation::Pipeline { stages })?;
        self.raw.clear();
        let result = ITEM_BYTES_MAX..ITEM_BYTES_MAX + compressed.result[0] as usize;
        self.pair.copy_to_host(Purpose::Other, &self.memory, result, &mut self.raw);
        Ok(())
    }
}
